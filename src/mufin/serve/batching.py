"""Batching: small requests share a forward pass; long ones are computed in slices between them."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mufin.serve.metrics import Metrics
from mufin.serve.problem import Problem

Ask = TypeVar("Ask")
log = logging.getLogger("mufin.serve")


@dataclass(eq=False)
class _Job(Generic[Ask]):
    """Work for a thread: an `ask` to be batched, or a `call` of its own."""

    weight: int
    deadline: float
    future: asyncio.Future[Any]
    ask: Ask | None = None
    call: Callable[[], Any] | None = None
    long: bool = False  # a slice of a long request


class Batcher(Generic[Ask]):
    """Two bounded queues in front of a few threads: small requests, and slices of long ones.

    A batch is a thread's fair share of all items waiting or running. If recent batches had several items, it
    waits up to `window` seconds for its share to arrive. A lone caller never waits.

    If both queues have work, the threads alternate: a batch of small requests, then one slice of a long
    request, the long requests in turn. A small request never waits for more than a slice per thread.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Ask]], Sequence[Any]],
        *,
        window: float,
        size: int,
        queue: int,
        deadline: float,
        metrics: Metrics,
        backlog: int = 1024,
        threads: int = 1,
        prepare: Callable[[], Any] = lambda: None,
    ) -> None:
        """`queue` limits the cost of small requests, `backlog` that of long ones; threads `prepare` first."""
        self.answer, self.metrics = answer, metrics
        self.window, self.size, self.queue, self.deadline = window, size, queue, deadline
        self.backlog = backlog
        self._jobs: deque[_Job[Ask]] = deque()
        self._waiting = self._running = 0  # cost in the queue, and in the threads
        self._long: deque[deque[_Job[Ask]]] = deque()  # the remaining slices of each long request
        self._behind = 0  # their cost
        self._long_next = False
        self._expected = 1.0  # cost of a usual batch
        self._changed = threading.Condition()
        self._closing = False
        self._prepare = prepare
        self._threads = [
            threading.Thread(target=self._work, name=f"mufin-model-{n}", daemon=True) for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    async def ask(self, ask: Ask, weight: int, patience: float | None = None) -> Any:
        """Return the answer to `ask`, which costs `weight`; `patience` in seconds replaces the deadline."""
        return await self._submit(weight, ask=ask, patience=patience)

    async def ask_slices(self, slices: Sequence[tuple[Ask, int]]) -> list[Any]:
        """Return the answers to the slices of a long request, given with their costs."""
        return await self._in_turns([self._long_job(cost, ask=ask) for ask, cost in slices])

    async def call(self, call: Callable[[], Any], weight: int = 1) -> Any:
        """Run `call` in a thread and return its result."""
        if weight <= self.size:
            return await self._submit(weight, call=call)
        return (await self.call_slices([(call, weight)]))[0]

    async def call_slices(self, slices: Sequence[tuple[Callable[[], Any], int]]) -> list[Any]:
        """Run the calls of a long request, given with their costs, and return their results."""
        return await self._in_turns([self._long_job(cost, call=call) for call, cost in slices])

    def _long_job(
        self, cost: int, ask: Ask | None = None, call: Callable[[], Any] | None = None
    ) -> _Job[Ask]:
        future = asyncio.get_running_loop().create_future()
        return _Job(cost, time.monotonic() + self.deadline, future, ask, call, long=True)

    async def close(self) -> None:
        """Answer what is waiting, accept nothing more, and end the threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    @property
    def depth(self) -> int:
        """The cost of what is waiting."""
        return self._waiting + self._behind

    async def _submit(
        self,
        weight: int,
        ask: Ask | None = None,
        call: Callable[[], Any] | None = None,
        patience: float | None = None,
    ) -> Any:
        seconds = self.deadline if patience is None else patience
        future = asyncio.get_running_loop().create_future()
        job = _Job(weight, time.monotonic() + seconds, future, ask, call)
        with self._changed:
            self._check_room(self._waiting, weight, self.queue)
            self._jobs.append(job)
            self._waiting += weight
            # A thread that waits for a batch to fill is not woken for every item: that would delay the next.
            if len(self._jobs) == 1 or call or self._waiting + 0.5 >= min(self._expected, self.size):
                self._changed.notify_all()
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            raise _late() from None

    async def _in_turns(self, slices: list[_Job[Ask]]) -> list[Any]:
        cost = sum(job.weight for job in slices)
        with self._changed:
            self._check_room(self._behind, cost, self.backlog)
            self._long.append(deque(slices))
            self._behind += cost
            self._changed.notify_all()
        try:
            async with asyncio.timeout(self.deadline):
                return [await job.future for job in slices]
        except TimeoutError:
            raise _late() from None
        finally:
            for job in slices:  # after a failure, drop the rest
                if not job.future.cancel() and not job.future.cancelled():
                    job.future.exception()

    def _check_room(self, waiting: int, weight: int, most: int) -> None:
        if self._closing:
            raise Problem(503, "the service is stopping", {"Retry-After": "5"})
        if waiting and waiting + weight > most:
            raise Problem(429, "too many requests are waiting; try again soon", {"Retry-After": "1"})

    # -- the threads -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._prepare()
        while jobs := self._next():
            ready = [job for job in jobs if not job.future.cancelled() and job.deadline > time.monotonic()]
            results: list[tuple[_Job[Ask], Any]] = []
            if ready and ready[0].call is not None:
                results = [(ready[0], _attempt(ready[0].call))]
            elif ready:
                results = self._batch(ready)
            results += [(job, _late()) for job in jobs if job not in ready]
            with self._changed:
                # Callers that are answered now may come back at once.
                self._expected = max(self._share(), 0.7 * self._expected)
                self._running -= sum(job.weight for job in jobs if not job.long)
            _deliver(results)

    def _share(self) -> float:
        """Return each thread's share of the cost waiting or running."""
        return (self._waiting + self._running) / len(self._threads)

    def _batch(self, jobs: list[_Job[Ask]]) -> list[tuple[_Job[Ask], Any]]:
        self.metrics.batch(sum(job.weight for job in jobs))
        answers = _attempt(lambda: self.answer([job.ask for job in jobs]))  # type: ignore[misc]  # called at once
        if isinstance(answers, BaseException):
            answers = [answers] * len(jobs)
        return list(zip(jobs, answers, strict=True))

    def _next(self) -> list[_Job[Ask]]:
        """Return the jobs of the next batch, or one call or slice; nothing when closed and done."""
        with self._changed:
            while True:
                while not self._jobs and not self._long and not self._closing:
                    self._changed.wait()
                if self._long and (self._long_next or not self._jobs):
                    self._long_next = False
                    return [self._slice()]
                self._wait_for_more()
                if self._jobs:
                    self._long_next = True
                    return self._together()
                if self._closing and not self._long:
                    return []

    def _slice(self) -> _Job[Ask]:
        """Return the next slice of the long request whose turn it is."""
        slices = self._long.popleft()
        job = slices.popleft()
        if slices:
            self._long.append(slices)
        self._behind -= job.weight
        return job

    def _together(self) -> list[_Job[Ask]]:
        """Return small requests that make a batch, or one call."""
        most = min(self.size, math.ceil(self._share()))
        taken: list[_Job[Ask]] = []
        weight = 0
        while self._jobs and not (taken and taken[0].call):
            head = self._jobs[0]
            if taken and (head.call or weight + head.weight > most):
                break
            taken.append(self._jobs.popleft())
            weight += head.weight
        self._waiting -= weight
        self._running += weight
        return taken

    def _wait_for_more(self) -> None:
        until = time.monotonic() + self.window
        wanted = min(self._expected, self.size)
        while self._jobs and not self._closing and self._waiting + 0.5 < wanted:
            left = until - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                return


def _attempt(call: Callable[[], Any]) -> Any:
    """Return the result of `call`, or the error that it raised."""
    try:
        return call()
    except Exception as error:
        return error


def _late() -> Problem:
    return Problem(504, "no answer in time; try again, or send fewer items", {"Retry-After": "2"})


def _deliver(results: list[tuple[_Job[Any], Any]]) -> None:
    """Hand the results to the event loop, all at once."""
    if not results:
        return

    def settle() -> None:
        for job, result in results:
            if job.future.done():
                continue
            if isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    try:
        results[0][0].future.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:  # the loop has ended, and with it all requests
        log.debug("an answer came after the shutdown")
