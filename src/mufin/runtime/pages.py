"""Memory of mapped files that will not be read again soon."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

from torch import Tensor


def release(mapped: Tensor, path: Path) -> None:
    """Give back the memory of the file that a tensor is mapped from, until it is read again.

    62 MB less once the weights of MiniLM-L6 are laid out anew. Nobody may have written to the mapping, since
    what was written would be lost.
    """
    if not sys.platform.startswith("linux"):
        return
    storage = mapped.untyped_storage()
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, *_, name = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in where.split("-"))
        # Only of this very file: memory that is no mapping would be cleared.
        if name == str(path.resolve()) and start <= storage.data_ptr() < end:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED
            )
