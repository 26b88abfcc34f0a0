"""Functions of tensors recorded as CUDA graphs.

A network of a hundred small operations takes a GPU less time than Python needs to launch it, especially while
other threads decode images. A recorded graph is launched in one call.

A recorded function must not wait for the GPU: it cannot ask how many numbers there are, and pads to what is
known instead (`pads`). It may state conditions under which its result holds (`holds`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

WARM_UP = 2  # calls before recording, in which libraries choose kernels and allocate memory
MAX_PADDED = 1 << 16  # numbers to pad to at most
_conditions: ContextVar[list[Tensor] | None] = ContextVar("conditions", default=None)


class NotRecordable(Exception):
    """The function would have to wait for the GPU."""


def waits(tensor: Tensor) -> bool:
    """Return whether reading a number of this tensor waits for a GPU."""
    return tensor.is_cuda


def pads(tensor: Tensor, numbers: int, most: int = MAX_PADDED) -> bool:
    """Return whether to pad a result to this many numbers rather than wait to know how many there are."""
    if waits(tensor) and numbers <= most:
        return True
    if recording():
        raise NotRecordable
    return False


def recording() -> bool:
    """Return whether a function is being recorded."""
    return _conditions.get() is not None


def holds(condition: Tensor) -> bool:
    """Return whether a condition () holds; a recording assumes it, and checks it in every call."""
    conditions = _conditions.get()
    if conditions is None:
        return bool(condition)
    conditions.append(condition)
    return True


class Recorded:
    """f(x, …) → tensor or tensors, recorded once for each shape of its arguments on a GPU.

    Elsewhere, and as part of another recording, it is called as it is. The function must not use tensors that
    are freed or replaced later. Returns None if a condition of the function does not hold.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.graphs: dict[Any, _Graph] = {}
        self.lock = threading.Lock()  # a graph has one buffer for its arguments

    def __call__(self, *arguments: Tensor) -> Any:
        if not arguments[0].is_cuda or recording():
            return self.function(*arguments)
        shapes = tuple((each.shape, each.dtype) for each in arguments)
        with self.lock:
            if shapes not in self.graphs:
                pool = next((graph.pool for graph in self.graphs.values()), None)
                self.graphs[shapes] = _Graph(self.function, arguments, pool)
            return self.graphs[shapes](*arguments)


class _Graph:
    """One recording; all recordings of a function share memory for what they compute in between."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Tensor, ...], pool: Any) -> None:
        device = arguments[0].device  # the others may be on the host
        self.arguments = [each.detach().to(device, copy=True) for each in arguments]
        conditions: list[Tensor] = []
        token = _conditions.set(conditions)
        try:
            side_stream = torch.cuda.Stream()
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(side_stream):
                for _ in range(WARM_UP):
                    function(*self.arguments)
            torch.cuda.current_stream().wait_stream(side_stream)
            conditions.clear()
            graph = torch.cuda.CUDAGraph()
            # Other threads may allocate memory meanwhile.
            with torch.no_grad(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                self.result = function(*self.arguments)
                self.holds = torch.stack(conditions).all() if conditions else None
        finally:
            _conditions.reset(token)
        self.graph, self.pool = graph, graph.pool()

    def __call__(self, *arguments: Tensor) -> Any:
        for buffer, given in zip(self.arguments, arguments, strict=True):
            buffer.copy_(given, non_blocking=True)
        self.graph.replay()
        many = isinstance(self.result, tuple)
        found = tuple(each.clone() for each in self.result) if many else self.result.clone()
        return found if self.holds is None or bool(self.holds) else None


def rounded_up(n: int) -> int:
    """Return the next power of two, so that few shapes are recorded.

    >>> [rounded_up(n) for n in (1, 2, 3, 200)]
    [1, 2, 4, 256]
    """
    return 1 << max(0, n - 1).bit_length()
