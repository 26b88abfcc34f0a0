"""Tensor files: written only if all values are finite, memory-mapped when read, checked before use."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.errors import ModelError
from mufin.files.folder import RECOVERY_HINT
from mufin.runtime.memory import release

MAX_SCANNED_BYTES = 64 << 20  # larger files stay mapped: scanning would read them into memory
FLOATS = (torch.float32, torch.float16)
INTS = (torch.int64, torch.int32)


@dataclass(frozen=True)
class Tensors:
    """The tensors of a file, with getters that check shape, dtype and range."""

    path: Path
    all: dict[str, Tensor]

    def __contains__(self, name: str) -> bool:
        return name in self.all

    def get(self, name: str, shape: tuple[int | None, ...], dtypes: tuple[torch.dtype, ...]) -> Tensor:
        """Return a tensor, which must have this shape (None: any length) and one of these dtypes."""
        if name not in self.all:
            raise ModelError(f"{self.path} has no {name}: train again")
        tensor = self.all[name]
        lengths = tuple(tensor.shape)
        same = len(lengths) == len(shape) and all(w in (None, n) for n, w in zip(lengths, shape, strict=True))
        if not same or tensor.dtype not in dtypes:
            wanted = " × ".join("any" if length is None else str(length) for length in shape)
            raise self.wrong(f"{name} is {lengths} of {tensor.dtype}, expected {wanted} of {dtypes[0]}")
        return tensor

    def get_floats(self, name: str, *shape: int | None) -> Tensor:
        """Return a tensor in single or half precision."""
        return self.get(name, shape, FLOATS)

    def get_rows(self, name: str, limit: int, length: int | None = None) -> Tensor:
        """Return (n,) int64, all values at least 0 and below the limit."""
        rows = self.get(name, (length,), (torch.int64,))
        self._check_range(name, rows, limit)
        return rows

    def get_offsets(self, name: str, count: int | None, total: int) -> Tensor:
        """Return (count + 1,) int64 offsets from 0 to the total, never decreasing; None: any count."""
        offsets = self.get(name, (None if count is None else count + 1,), (torch.int64,))
        self._check_offsets(name, offsets, total)
        return offsets

    def get_sparse(self, name: str, shape: tuple[int, int]) -> csr_matrix:
        """Return the sparse matrix that `sparse_tensors` wrote."""
        data = self.get_floats(f"{name}.data", None).float()
        columns = self.get(f"{name}.indices", (len(data),), INTS)
        offsets = self.get(f"{name}.indptr", (shape[0] + 1,), INTS)
        self._check_range(f"{name}.indices", columns, shape[1])
        self._check_offsets(f"{name}.indptr", offsets, len(data))
        return csr_matrix((data.numpy(), columns.numpy(), offsets.numpy()), shape)

    def wrong(self, what: str) -> ModelError:
        """Return the error for a file with unexpected content."""
        return ModelError(f"{self.path}: {what}: {RECOVERY_HINT}")

    def _check_range(self, name: str, rows: Tensor, limit: int) -> None:
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < limit:
            raise self.wrong(f"{name} is {int(rows.min())} to {int(rows.max())}, expected 0 to {limit - 1}")

    def _check_offsets(self, name: str, offsets: Tensor, total: int) -> None:
        values = offsets.numpy()
        if not len(values) or values[0] != 0 or values[-1] != total or bool(np.any(values[1:] < values[:-1])):
            raise self.wrong(f"{name} does not increase from 0 to {total}")


def read_tensors(path: Path) -> Tensors:
    """Memory-map a tensor file; small files are also checked for values that are not finite."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): {RECOVERY_HINT}") from None
    if path.stat().st_size <= MAX_SCANNED_BYTES:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"{path}: tensor {name!r} has values that are not finite; train again")
        for tensor in list(tensors.values())[:1]:  # all share one mapping
            release(tensor, path)
    return Tensors(path, tensors)


def sparse_tensors(name: str, matrix: csr_matrix) -> Iterator[tuple[str, Tensor]]:
    """Yield the three arrays of a sparse matrix."""
    for part in ("data", "indices", "indptr"):
        yield f"{name}.{part}", torch.from_numpy(getattr(matrix, part))


def write_tensors(path: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write a safetensors file with the default permissions."""
    ready: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"{name} has values that are not finite; training diverged: lower the learning rate"
            )
        ready[name] = tensor.detach().cpu().contiguous()
        # safetensors refuses memory that two tensors share, and writes the whole of a tensor's memory.
        memory = ready[name].untyped_storage()
        if memory.data_ptr() in seen or memory.nbytes() != tensor.nbytes:
            ready[name] = ready[name].clone()
        seen.add(memory.data_ptr())
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, path)
    except SafetensorError as error:
        raise disk_error(path, error) from None
    path.chmod(mode)  # safetensors makes its files private


def disk_error(path: Path, error: Exception) -> OSError:
    """Convert the error of a native library that could not write a file to an OSError."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]) if found else errno.EIO, str(error), str(path))
