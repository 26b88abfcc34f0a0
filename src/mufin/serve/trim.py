"""Trim: memory that a write freed goes back to the system, so that a service stays as large as it was."""

from __future__ import annotations

import ctypes
import sys


def trim() -> None:
    """Ask glibc to give back what is free; elsewhere there is nothing to ask."""
    if sys.platform == "linux":
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if give_back is not None:
            give_back(0)
