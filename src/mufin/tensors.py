"""Files of tensors: written only if every number is finite, mapped when read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.errors import ModelError
from mufin.folder import BIG


def sparse_tensors(matrix: csr_matrix | None, name: str = "words") -> Iterator[tuple[str, Tensor]]:
    """The three arrays of a sparse matrix, if there is one."""
    if matrix is not None:
        for part in ("data", "indices", "indptr"):
            yield f"{name}.{part}", torch.from_numpy(getattr(matrix, part))


def words_of(
    tensors: dict[str, Tensor], shape: tuple[int, int], path: Path, name: str = "words"
) -> csr_matrix | None:
    """What `sparse_tensors` wrote, mapped."""
    if f"{name}.data" not in tensors:
        return None
    try:
        arrays = tuple(tensors[f"{name}.{part}"].numpy() for part in ("data", "indices", "indptr"))
        return csr_matrix(arrays, shape)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{path}: words cannot be read ({error}): copy the folder again") from None


def write_tensors(path: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """A safetensors file, as open to others as any."""
    ready = {}
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"{name} has values that are not finite; training diverged: lower the learning rate"
            )
        ready[name] = tensor.detach().cpu().contiguous().clone()
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(ready, path)
    except SafetensorError as error:
        raise ModelError(f"{path.name} cannot be written: {error}") from None
    path.chmod(mode)  # safetensors makes its files private; these are as open as the others


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Mapped tensors; small files are also searched for values that are not finite."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}): copy the folder again or train again") from None
    if path.stat().st_size <= BIG:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"{path}: tensor {name!r} has values that are not finite; train again")
    return tensors
