"""Trim: a service stays as large as it was; what a write freed goes back to the system."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8  # as mallopt calls them
FREE = 64 << 20  # bytes that a heap may keep: what one batch frees, the next one takes
LARGE = 4 << 20  # bytes; larger blocks, such as labels, are mapped, so that nothing beside them keeps them


def settle() -> None:
    """Have glibc keep few heaps, and large blocks outside them: else threads take turns in growing theirs."""
    if mallopt := _glibc("mallopt"):
        mallopt(ARENA_MAX, 2)
        mallopt(MMAP_THRESHOLD, LARGE)
        mallopt(TRIM_THRESHOLD, FREE)


def trim() -> None:
    """Ask glibc to give back what is free."""
    if give_back := _glibc("malloc_trim"):
        give_back(0)


def _glibc(name: str) -> Any:
    """The function of this name, or None where there is no glibc."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
