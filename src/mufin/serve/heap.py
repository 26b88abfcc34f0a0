"""Heap: how memory is kept, so that a service stays as large as it is, whatever it is asked."""

from __future__ import annotations

import ctypes
import sys

import pyarrow as pa

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # as mallopt calls them
FREE = 64 << 20  # bytes that a heap may keep: what one batch frees, the next one takes
LARGE = 4 << 20  # bytes; larger blocks, such as labels, are mapped, and given back as soon as they are free
HEAPS = 2  # one would have threads wait for one another; with one a thread, all grow in turns


def settle() -> None:
    """Arrow and everything else share a few heaps of glibc; elsewhere things stay as they are."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # musl has none
        return
    pa.set_memory_pool(pa.system_memory_pool())
    for option, value in ((ARENA_MAX, HEAPS), (MMAP_THRESHOLD, LARGE), (TRIM_THRESHOLD, FREE)):
        mallopt(option, value)
