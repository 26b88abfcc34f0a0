"""Functions of tensors recorded as CUDA graphs.

A network of a hundred small operations takes a GPU less time than Python needs to launch it, especially while
other threads decode images. A recorded graph is launched in one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

WARM_UP = 2  # calls before recording, in which libraries choose kernels and allocate memory


class Recorded:
    """f(x, …) → tensor, recorded once for each shape of its arguments on a GPU; elsewhere called as it is.

    The function must not wait for the GPU, and must not use tensors that are freed or replaced later.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function
        self.graphs: dict[Any, _Graph] = {}
        self.lock = threading.Lock()  # a graph has one buffer for its arguments

    def __call__(self, *arguments: Tensor) -> Tensor:
        if not arguments[0].is_cuda:
            return self.function(*arguments)
        shapes = tuple((each.shape, each.dtype) for each in arguments)
        with self.lock:
            if shapes not in self.graphs:
                pool = next((graph.pool for graph in self.graphs.values()), None)
                self.graphs[shapes] = _Graph(self.function, arguments, pool)
            return self.graphs[shapes](*arguments)


class _Graph:
    """One recording; all recordings of a function share memory for what they compute in between."""

    def __init__(self, function: Callable[..., Tensor], arguments: tuple[Tensor, ...], pool: Any) -> None:
        self.arguments = [each.detach().clone() for each in arguments]
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side_stream):
            for _ in range(WARM_UP):
                function(*self.arguments)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate memory meanwhile.
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self.result = function(*self.arguments)
        self.graph, self.pool = graph, graph.pool()

    def __call__(self, *arguments: Tensor) -> Tensor:
        for buffer, given in zip(self.arguments, arguments, strict=True):
            buffer.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.result.clone()


def rounded_up(n: int) -> int:
    """Return the next power of two, so that few shapes are recorded.

    >>> [rounded_up(n) for n in (1, 2, 3, 200)]
    [1, 2, 4, 256]
    """
    return 1 << max(0, n - 1).bit_length()
