"""The queue before the model: batches, fullness, deadlines, an end in order."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from mufin.serve.batching import Batcher
from mufin.serve.metrics import Metrics
from mufin.serve.problem import Problem


class Slow:
    """Answers twice the number, after a while; remembers the batches."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds, self.batches = seconds, []  # type: ignore[var-annotated]
        self.threads: set[int] = set()

    def __call__(self, asks: Sequence[int]) -> list[Any]:
        self.batches.append(list(asks))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        return [ValueError("odd") if ask < 0 else 2 * ask for ask in asks]


def made(slow: Slow, **settings: Any) -> Batcher[int]:
    usual = {"window": 0.004, "size": 8, "queue": 64, "deadline": 5.0, "metrics": Metrics()}
    batcher = Batcher(slow, **{**usual, **settings})  # type: ignore[arg-type]
    batcher.start()
    return batcher


def test_what_comes_together_shares_a_batch_and_each_gets_its_own() -> None:
    slow = Slow(0.02)

    async def main() -> list[int]:
        batcher = made(slow)
        found = await asyncio.gather(*(batcher.ask(n, 1) for n in range(20)))
        await batcher.close()
        return found

    assert asyncio.run(main()) == [2 * n for n in range(20)]
    assert max(map(len, slow.batches)) == 8
    assert len(slow.batches) <= 5
    assert len(slow.threads) == 1


def test_a_lone_caller_does_not_wait_for_company() -> None:
    async def main() -> float:
        batcher = made(Slow(), window=0.5)
        started = time.monotonic()
        for n in range(10):
            await batcher.ask(n, 1)
        seconds = time.monotonic() - started
        await batcher.close()
        return seconds

    assert asyncio.run(main()) < 0.4, "ten windows would be five seconds"


def test_company_is_waited_for_where_there_was_some() -> None:
    """Callers that come back one after the other within the window are one batch again."""
    slow = Slow()

    async def main() -> None:
        batcher = made(slow, window=0.2)
        await asyncio.gather(*(batcher.ask(n, 1) for n in range(4)))
        first = asyncio.ensure_future(batcher.ask(10, 1))
        await asyncio.sleep(0.02)
        await asyncio.gather(first, *(batcher.ask(n, 1) for n in range(11, 14)))
        await batcher.close()

    asyncio.run(main())
    assert [10, 11, 12, 13] in slow.batches


def test_callers_that_come_back_at_once_become_one_batch() -> None:
    """Two groups that take turns would wait for one another; they are united."""
    slow = Slow(0.02)

    async def main() -> None:
        batcher = made(slow, window=0.2)

        async def caller(delay: float) -> None:
            await asyncio.sleep(delay)
            for n in range(6):
                await batcher.ask(n, 1)

        await asyncio.gather(*(caller(0.01 * (n % 2)) for n in range(8)))
        await batcher.close()

    asyncio.run(main())
    assert sum(len(batch) == 8 for batch in slow.batches) >= 3, slow.batches


def test_a_full_queue_is_told_at_once() -> None:
    async def main() -> tuple[list[Any], float]:
        batcher = made(Slow(0.3), size=1, queue=4)
        tasks = [asyncio.ensure_future(batcher.ask(0, 1))]
        await asyncio.sleep(0.1)
        tasks += [asyncio.ensure_future(batcher.ask(n, 1)) for n in range(1, 5)]
        await asyncio.sleep(0)  # one is being answered, four wait
        started = time.monotonic()
        with pytest.raises(Problem) as refused:
            await batcher.ask(99, 1)
        seconds = time.monotonic() - started
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
        found = await asyncio.gather(*tasks)
        await batcher.close()
        return found, seconds

    found, seconds = asyncio.run(main())
    assert found == [0, 2, 4, 6, 8]
    assert seconds < 0.1


def test_a_large_ask_goes_alone_rather_than_never() -> None:
    async def main() -> int:
        batcher = made(Slow(), size=4, queue=8)
        found: int = await batcher.ask(7, 50)
        await batcher.close()
        return found

    assert asyncio.run(main()) == 14


def test_a_deadline_is_kept_and_what_is_late_is_not_computed() -> None:
    slow = Slow(0.3)

    async def main() -> None:
        batcher = made(slow, size=1, deadline=0.1)
        first, second = (asyncio.ensure_future(batcher.ask(n, 1)) for n in (1, 2))
        for late in (first, second):
            with pytest.raises(Problem) as told:
                await late
            assert told.value.status == 504
        await asyncio.sleep(0.4)
        await batcher.close()

    asyncio.run(main())
    assert slow.batches == [[1]], "nobody waits for the second any more"


def test_one_wrong_ask_does_not_spoil_the_others() -> None:
    async def main() -> list[Any]:
        batcher = made(Slow(0.01))
        found = await asyncio.gather(*(batcher.ask(n, 1) for n in (1, -1, 3)), return_exceptions=True)
        await batcher.close()
        return found

    one, error, three = asyncio.run(main())
    assert (one, three) == (2, 6)
    assert isinstance(error, ValueError)


def test_closing_answers_what_waits_and_takes_nothing_more() -> None:
    async def main() -> list[int]:
        batcher = made(Slow(0.1), size=2)
        tasks = [asyncio.ensure_future(batcher.ask(n, 1)) for n in range(6)]
        await asyncio.sleep(0.02)
        closing = asyncio.ensure_future(batcher.close())
        await asyncio.sleep(0.02)
        with pytest.raises(Problem) as refused:
            await batcher.ask(9, 1)
        assert refused.value.status == 503
        await closing
        return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == [0, 2, 4, 6, 8, 10]


def test_a_small_request_waits_for_one_slice_of_a_long_one() -> None:
    slow = Slow(0.05)

    async def main() -> tuple[list[int], list[int]]:
        batcher = made(slow, size=1)
        long = asyncio.ensure_future(batcher.ask_slices([(n, 8) for n in range(100, 110)]))
        while not slow.batches:
            await asyncio.sleep(0.001)
        small = await asyncio.gather(*(batcher.ask(n, 1) for n in range(4)))
        found = await long
        await batcher.close()
        return found, small

    found, small = asyncio.run(main())
    assert found == [2 * n for n in range(100, 110)]
    assert small == [2 * n for n in range(4)]
    order = [batch[0] for batch in slow.batches]
    first, last = order.index(0), order.index(3)
    assert last - first == 6, f"slices and small requests do not alternate: {order}"


def test_long_requests_take_turns_and_leave_room_for_small_ones() -> None:
    slow = Slow(0.01)

    async def main() -> None:
        batcher = made(slow, queue=4, backlog=100)
        tasks = [
            asyncio.ensure_future(batcher.ask_slices([(ten + n, 10) for n in range(5)])) for ten in (10, 20)
        ]
        await asyncio.sleep(0)
        with pytest.raises(Problem) as refused:
            await batcher.ask_slices([(30, 20), (31, 20)])
        assert refused.value.status == 429
        assert await batcher.ask(1, 1) == 2, "the queue of small requests is another"
        await asyncio.gather(*tasks)
        assert await batcher.ask_slices([(40, 200)]) == [80], "costlier than the queue is, but nothing waits"
        await batcher.close()

    asyncio.run(main())
    turns = [batch[0] // 10 for batch in slow.batches if 10 <= batch[0] < 30]
    assert sorted(turns[:4]) == [1, 1, 2, 2], turns


def test_nothing_is_computed_for_a_long_request_that_failed() -> None:
    slow = Slow(0.02)

    async def main() -> None:
        batcher = made(slow)
        with pytest.raises(ValueError, match="odd"):
            await batcher.ask_slices([(1, 8), (-1, 8), *((n, 8) for n in range(2, 20))])
        await batcher.close()

    asyncio.run(main())
    assert len(slow.batches) < 5


def test_calls_run_in_the_same_thread_between_batches() -> None:
    slow = Slow()

    async def main() -> tuple[int, list[Any]]:
        batcher = made(slow)
        ask = asyncio.ensure_future(batcher.ask(1, 1))
        thread = await batcher.call(threading.get_ident)
        wrong = await asyncio.gather(batcher.call(lambda: 1 // 0), return_exceptions=True)
        await ask
        await batcher.close()
        return thread, wrong

    thread, (error,) = asyncio.run(main())
    assert slow.threads == {thread}
    assert isinstance(error, ZeroDivisionError)


def test_two_threads_share_what_comes_and_calls_too() -> None:
    slow, prepared = Slow(0.05), []

    async def main() -> list[int]:
        batcher = made(slow, threads=2, prepare=lambda: prepared.append(threading.get_ident()))
        found = [*await asyncio.gather(*(batcher.ask(n, 1) for n in range(12)))]
        found += await asyncio.gather(*(batcher.ask(n, 1) for n in range(12)))
        assert await batcher.call(lambda: 5) == 5
        await batcher.close()
        return found

    assert asyncio.run(main()) == [2 * n for n in [*range(12), *range(12)]]
    assert slow.threads == {*prepared}
    assert len(prepared) == 2
    assert max(map(len, slow.batches)) <= 8
