"""Measure the memory that this process uses, and what is free."""

from __future__ import annotations

import resource
import shutil
import sys
from contextlib import suppress
from pathlib import Path

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


def peak_memory() -> int:
    """Return the peak resident memory of this process since `reset_peak_memory`, in bytes."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT


def used_memory() -> int:
    """Return the resident memory of this process, in bytes; 0 if unknown."""
    return _status("VmRSS")


def reset_peak_memory() -> None:
    """Reset `peak_memory`, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def free_memory() -> int | None:
    """Return the most memory that this process could use, in bytes; None if unknown."""
    limits = []
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")))
    with suppress(OSError, ValueError):  # of a container; "max" if there is no limit
        group = Path("/sys/fs/cgroup")
        used = int((group / "memory.current").read_text())
        limits.append(int((group / "memory.max").read_text()) - used)
    return min(limits) + used_memory() if limits else None


def free_disk(path: Path) -> int | None:
    """Return the free space on the disk of a path, which need not exist, in bytes; None if unknown."""
    for folder in (path.absolute(), *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return None


def _status(name: str) -> int:
    """Read a size in /proc/self/status; 0 if there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0


def gigabytes(number: float) -> str:
    """Format bytes.

    >>> gigabytes(1.14e9), gigabytes(240e6)
    ('1.1 GB', '240 MB')
    """
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"
