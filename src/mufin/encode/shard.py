"""Cached features of some descriptors, in a file with checksums or in memory.

A file has a preamble (magic, checksum of head and index, their lengths), a JSON head (encoder, dtype, shape
of a row), an index (key, number of rows and checksum per descriptor) and the rows. Row checksums are seeded
with the key, so that changed and swapped rows are both detected. Only rows that are read are verified.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from mufin.data.ragged import Ints, Ragged, offsets_of, ranges

Keys = NDArray[np.uint64]
MAGIC = b"mufin features\n\0"
PREAMBLE = struct.Struct("<16sQQQ")
RowType = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and shape of a row
INDEX_DTYPE = np.dtype([("key", "<u8"), ("rows", "<i8"), ("checksum", "<u8")])
NUMERIC_KINDS = ("f", "i", "u")  # no object arrays, whose loading can run code


class DamagedError(Exception):
    """A file is damaged, or belongs to another encoder."""


@dataclass(frozen=True)
class MemoryShard:
    """Features in memory."""

    keys: Keys  # (n,) ascending
    rows: Ragged

    @property
    def lengths(self) -> Ints:
        return self.rows.lengths

    @property
    def row_type(self) -> RowType:
        return self.rows.flat.dtype, self.rows.flat.shape[1:]

    @classmethod
    def of(cls, keys: Keys, rows: Ragged) -> MemoryShard:
        """Build a shard sorted by key."""
        order = np.argsort(keys, kind="stable")
        lengths = rows.lengths[order]
        flat = rows.flat[ranges(rows.offsets[order], lengths)]
        return cls(keys[order], Ragged(flat, offsets_of(lengths)))

    def fill(self, at: Ints, flat: NDArray[Any], starts: Ints) -> None:
        """Copy the rows of descriptors `at` into `flat`, beginning at `starts`."""
        lengths = self.lengths[at]
        flat[ranges(starts, lengths)] = self.rows.flat[ranges(self.rows.offsets[at], lengths)]

    def write(self, path: Path, encoder: str) -> None:
        """Write a file atomically."""
        content = _bytes_of(self.rows.flat)
        row = _row_bytes(self.row_type)
        index = np.empty(len(self.keys), INDEX_DTYPE)
        index["key"], index["rows"] = self.keys, self.lengths
        bounds = (self.rows.offsets * row).tolist()
        index["checksum"] = [
            xxh3_64_intdigest(content[a:b], key)
            for key, a, b in zip(self.keys.tolist(), bounds, bounds[1:], strict=False)
        ]
        dtype, shape = self.row_type
        head = json.dumps({"encoder": encoder, "dtype": dtype.str, "shape": shape}).encode()
        described = head + index.tobytes()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        try:
            with os.fdopen(handle, "wb") as file:
                checksum = xxh3_64_intdigest(described)
                file.write(PREAMBLE.pack(MAGIC, checksum, len(head), len(described) - len(head)))
                file.write(described)
                file.write(content)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@dataclass(frozen=True)
class FileShard:
    """Features in a file whose index has been verified."""

    path: Path
    keys: Keys  # (n,) ascending
    lengths: Ints  # (n,) rows per descriptor
    row_type: RowType
    checksums: NDArray[np.uint64]  # (n,)
    start: int  # byte offset of the rows

    @classmethod
    def open(cls, path: Path, encoder: str) -> FileShard:
        """Read and verify the index; raise DamagedError if it is damaged or of another encoder."""
        with path.open("rb") as file:
            preamble = file.read(PREAMBLE.size)
            if len(preamble) < PREAMBLE.size:
                raise DamagedError
            magic, checksum, head_size, index_size = PREAMBLE.unpack(preamble)
            start = PREAMBLE.size + head_size + index_size
            if magic != MAGIC or start > os.fstat(file.fileno()).st_size:
                raise DamagedError
            described = file.read(head_size + index_size)
        if len(described) < head_size + index_size or xxh3_64_intdigest(described) != checksum:
            raise DamagedError
        return cls._of(path, encoder, described[:head_size], described[head_size:], start)

    @classmethod
    def _of(cls, path: Path, encoder: str, head: bytes, index: bytes, start: int) -> FileShard:
        try:
            fields = json.loads(head)
            dtype, shape = np.dtype(fields["dtype"]), tuple(int(size) for size in fields["shape"])
            found = np.frombuffer(index, INDEX_DTYPE)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamagedError from None
        keys, lengths = found["key"].astype(np.uint64), found["rows"].astype(np.int64)
        same = (
            fields.get("encoder") == encoder
            and dtype.kind in NUMERIC_KINDS
            and all(size > 0 for size in shape)
        )
        if not same or (lengths < 0).any() or (keys[1:] <= keys[:-1]).any():
            raise DamagedError
        return cls(path, keys, lengths, (dtype, shape), found["checksum"], start)

    def fill(self, at: Ints, flat: NDArray[Any], starts: Ints) -> None:
        """Copy and verify the rows of descriptors `at`; raise DamagedError at the first damaged one."""
        content, row = _bytes_of(flat), _row_bytes(self.row_type)
        ends = np.cumsum(self.lengths)
        sizes = self.lengths[at] * row
        places = self.start + (ends - self.lengths)[at] * row
        wanted = (self.keys[at], self.checksums[at], places, starts * row, sizes)
        # Not mapped: truncating a mapped file would kill the process.
        with self.path.open("rb", buffering=0) as file:
            for key, checksum, place, to, size in zip(*(part.tolist() for part in wanted), strict=True):
                into = content[to : to + size]
                file.seek(place)
                if file.readinto(into) != size or xxh3_64_intdigest(into, key) != checksum:
                    raise DamagedError


Shard = MemoryShard | FileShard


def _row_bytes(row_type: RowType) -> int:
    dtype, shape = row_type
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _bytes_of(flat: NDArray[Any]) -> memoryview:
    """View an array as bytes, without copying."""
    return flat.reshape(-1).view(np.uint8).data
