"""Read the images of the released MUFIN: `img.bin`, and CSR matrices of byte offsets into it.

The format is undocumented and inferred from the authors' code (Extreme-classification/MUFIN and
anshumitts/CafeXC): `img.bin` has one line `uid \\t base64 of an encoded image` per image;
`{train,test,label}.img.bin.npz` is a scipy CSR (rows, images) of byte offsets of lines + 1; 0 is no image.
"""

from __future__ import annotations

import binascii
import mmap
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array, csr_matrix, load_npz

from mufin.data.check_report import Problem
from mufin.data.pictures import Encoded, Pictures
from mufin.errors import CatalogueError

MAX_OFFSET = 1 << 62  # bytes; beyond the end of any file


class BinPictures(Pictures):
    """The images of rows, read from `img.bin` on access."""

    def __init__(self, path: Path, row_offsets: np.ndarray, line_starts: np.ndarray) -> None:
        self.path = path
        self.row_offsets = (
            row_offsets  # row i has the images line_starts[row_offsets[i] : row_offsets[i + 1]]
        )
        self.line_starts = line_starts  # bytes

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    @cached_property
    def data(self) -> mmap.mmap:
        """The file, memory-mapped."""
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def row(self, row: int) -> tuple[Encoded, ...]:
        first, last = self.row_offsets[row : row + 2]
        return tuple(self._image(int(start)) for start in self.line_starts[first:last])

    def counts(self) -> np.ndarray:
        return np.diff(self.row_offsets)

    def _image(self, start: int) -> bytes:
        end = self.data.find(b"\n", start)
        _, _, text = self.data[start : len(self.data) if end < 0 else end].partition(b"\t")
        try:
            return binascii.a2b_base64(text)
        except binascii.Error:
            return b""  # skipped and reported like any image that cannot be decoded


def find_images(folder: Path, name: str, ids: pa.ChunkedArray, problems: list[Problem]) -> BinPictures | None:
    """Find the images of train, test or label; without the CSR, search `img.bin` for the ids."""
    folders = [folder / "images", folder]
    data = next((p for place in folders if (p := place / "img.bin").is_file()), None)
    if data is None:
        return None
    index = next((p for place in folders if (p := place / f"{name}.img.bin.npz").is_file()), None)
    row_offsets, line_starts = _search(data, ids) if index is None else _read_index(index, len(ids))
    if not len(line_starts):
        problems.append(Problem("warning", f"no images for {name}", data.name))
    beyond = line_starts >= data.stat().st_size
    if beyond.any():
        raise CatalogueError(
            f"offset {line_starts[beyond][0]:,} lies beyond the end of the file; download it again", data
        )
    return BinPictures(data, row_offsets, line_starts)


def _read_index(path: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Read a CSR of byte offsets as row offsets and line starts; check every number in it."""
    try:
        matrix = load_npz(path)
        if not isinstance(matrix, csr_matrix | csr_array) or matrix.data.dtype.kind not in "iuf":
            raise ValueError("expected a CSR matrix of numbers")
    except Exception as error:  # damaged array headers raise many kinds of exceptions
        reason = str(error)[:100] or type(error).__name__
        raise CatalogueError(f"not a scipy sparse matrix ({reason}); download it again", path) from None
    if matrix.shape[0] != rows:
        raise CatalogueError(f"{matrix.shape[0]:,} rows, expected {rows:,}; download it again", path)
    starts, data = matrix.indptr.astype(np.int64), matrix.data
    if starts[0] != 0 or starts[-1] != len(data) or (starts[1:] < starts[:-1]).any():
        raise CatalogueError("row offsets are not in order; download it again", path)
    if not ((data >= 0) & (data < MAX_OFFSET)).all():
        raise CatalogueError("offsets are not valid; download it again", path)
    # Sorted here: scipy's sorting trusts the row offsets, and its full check of them can overflow.
    owners = np.repeat(np.arange(rows), np.diff(starts))
    offsets = data[np.lexsort((matrix.indices, owners))].astype(np.int64)
    filled = offsets > 0
    return np.concatenate([[0], np.cumsum(filled)])[starts].astype(np.int64), offsets[filled] - 1


def _search(path: Path, ids: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Search `img.bin` for the lines of each id; return row offsets and line starts."""
    lines_of: dict[bytes, list[int]] = {uid.encode(): [] for uid in ids.to_pylist()}
    start = 0
    with path.open("rb") as file:
        for line in file:
            uid, _, _ = line.partition(b"\t")
            if uid in lines_of:
                lines_of[uid].append(start)
            start += len(line)
    rows = [lines_of[uid.encode()] for uid in ids.to_pylist()]
    row_offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return row_offsets, np.asarray([start for row in rows for start in row], np.int64)
