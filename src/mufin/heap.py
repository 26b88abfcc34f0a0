"""Heap: how glibc keeps memory that was freed; elsewhere things stay as they are."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # as mallopt calls them
FREE = 64 << 20  # bytes that a heap may keep: what one batch frees, the next one takes
LARGE = 4 << 20  # bytes; larger blocks, such as labels, are mapped, and given back as soon as they are free
HEAPS = 2  # one would have threads wait for one another; with one a thread, all grow in turns
STEP = 1 << 30  # bytes that a training step may ask for at once, and four times as much that it may free


def settle() -> None:
    """For a service, which stays as large as it is whatever it is asked: all share a few heaps."""
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return
    pa.set_memory_pool(pa.system_memory_pool())
    for option, value in ((ARENA_MAX, HEAPS), (MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, FREE)):
        mallopt(option, value)


@contextmanager
def kept() -> Iterator[None]:
    """While inside, what a training step frees the next one takes, instead of pages that are cleared anew."""
    mallopt, trim = _glibc("mallopt"), _glibc("malloc_trim")
    if mallopt is None or trim is None:
        yield
        return
    mallopt(MMAP_THRESHOLD, STEP)
    mallopt(TRIM_THRESHOLD, min(4 * STEP, 2**31 - 1))
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, LARGE)
        mallopt(TRIM_THRESHOLD, FREE)
        trim(0)


def trim() -> None:
    """Give freed memory back to the system."""
    free = _glibc("malloc_trim")
    if free is not None:
        free(0)


def _glibc(name: str) -> Callable[..., Any] | None:
    """A function of it, where there is one: musl has none."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
