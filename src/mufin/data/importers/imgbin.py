"""The pictures of the released MUFIN: `img.bin`, and a CSR of where in it the pictures of a row begin.

Known from the authors' code (Extreme-classification/MUFIN and anshumitts/CafeXC), not from a description:
`img.bin` has a line `uid \\t base64 of an encoded picture` for each picture; `{train,test,label}.img.bin.npz`
is a scipy CSR (rows, pictures) whose values are byte offsets of lines + 1, so that 0 is no picture.
"""

from __future__ import annotations

import binascii
import mmap
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, csr_matrix, load_npz

from mufin.data.pictures import Encoded, Pictures
from mufin.data.problems import Problem
from mufin.errors import CatalogueError

LARGEST = 1 << 62  # bytes; no file is larger


class BinPictures(Pictures):
    """Rows of pictures that are read from `img.bin` when they are asked for."""

    def __init__(self, path: Path, starts: np.ndarray, places: np.ndarray) -> None:
        self.path, self.starts, self.places = path, starts, places

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def data(self) -> mmap.mmap:
        """The file, mapped."""
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def row(self, row: int) -> tuple[Encoded, ...]:
        return tuple(self._picture(int(at)) for at in self.places[self.starts[row] : self.starts[row + 1]])

    def counts(self) -> np.ndarray:
        return np.diff(self.starts)

    def _picture(self, place: int) -> bytes:
        end = self.data.find(b"\n", place)
        _, _, text = self.data[place : len(self.data) if end < 0 else end].partition(b"\t")
        try:
            return binascii.a2b_base64(text)
        except binascii.Error:
            return b""  # as any picture that cannot be read, it is passed over and told of


def find(folder: Path, name: str, ids: pa.ChunkedArray, problems: list[Problem]) -> BinPictures | None:
    """The pictures of train, test or label; without the CSR, `img.bin` is searched for the ids."""
    places = [folder / "images", folder]
    data = next((place / "img.bin" for place in places if (place / "img.bin").is_file()), None)
    if data is None:
        return None
    index = next((p for place in places if (p := place / f"{name}.img.bin.npz").is_file()), None)
    found = _scanned(data, ids) if index is None else _indexed(index, len(ids))
    if not len(found[1]):
        problems.append(Problem("warning", f"no picture for {name} in it", data.name))
    beyond = found[1] >= data.stat().st_size
    if beyond.any():
        raise CatalogueError(f"offset {found[1][beyond][0]:,} lies beyond its end; download it again", data)
    return BinPictures(data, *found)


def _indexed(path: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        matrix = load_npz(path)
        if not isinstance(matrix, csr_matrix | csr_array) or matrix.data.dtype.kind not in "iuf":
            raise ValueError("expected CSR of numbers")
    except Exception as error:  # damaged headers of arrays end in a dozen kinds of exception
        reason = str(error)[:100] or type(error).__name__
        raise CatalogueError(f"not a sparse matrix of scipy ({reason}); download it again", path) from None
    if matrix.shape[0] != rows:
        raise CatalogueError(
            f"{matrix.shape[0]:,} rows, but there are {rows:,} {path.name.split('.')[0]} rows", path
        )
    starts, data = matrix.indptr.astype(np.int64), matrix.data
    if starts[0] != 0 or starts[-1] != len(data) or (starts[1:] < starts[:-1]).any():
        raise CatalogueError("row offsets that are not in order; download it again", path)
    if not ((data >= 0) & (data < LARGEST)).all():
        raise CatalogueError("offsets that are no places in a file; download it again", path)
    # Sorted here: scipy's own sorting trusts the row offsets, and its full check of them can overflow.
    owners = np.repeat(np.arange(rows), np.diff(starts))
    places = data[np.lexsort((matrix.indices, owners))].astype(np.int64)
    real = places > 0
    return np.concatenate([[0], np.cumsum(real)])[starts].astype(np.int64), places[real] - 1


def _scanned(path: Path, ids: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Where the pictures of each id begin."""
    wanted: dict[bytes, list[int]] = {uid.encode(): [] for uid in ids.to_pylist()}
    place = 0
    with path.open("rb") as file:
        for line in file:
            uid, _, _ = line.partition(b"\t")
            if uid in wanted:
                wanted[uid].append(place)
            place += len(line)
    rows = [wanted[uid.encode()] for uid in ids.to_pylist()]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return starts, np.asarray([place for row in rows for place in row], np.int64)
