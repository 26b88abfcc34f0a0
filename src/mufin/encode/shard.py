"""Cached features of some descriptors: a file that checks itself, or rows held in memory.

A file is a preamble (magic, checksum of head and index, their lengths), a head in JSON (encoder, dtype, shape
of a row), an index (key, number of rows and checksum of each descriptor) and the rows. The checksum of rows
is seeded with their key: neither changed rows nor those of another descriptor pass. Only rows that are read
are checked.
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
Kind = tuple[np.dtype[Any], tuple[int, ...]]  # dtype and shape of a row
INDEX = np.dtype([("key", "<u8"), ("rows", "<i8"), ("checksum", "<u8")])
KINDS = ("f", "i", "u")  # numbers; nothing that is read by running code


class DamagedError(Exception):
    """What the file holds is not what was written, or not of this encoder."""


@dataclass(frozen=True)
class Held:
    """Features in memory."""

    keys: Keys  # (n,) ascending
    rows: Ragged

    @property
    def lengths(self) -> Ints:
        return self.rows.lengths

    @property
    def kind(self) -> Kind:
        return self.rows.flat.dtype, self.rows.flat.shape[1:]

    @classmethod
    def of(cls, keys: Keys, rows: Ragged) -> Held:
        """In the order of the keys."""
        order = np.argsort(keys, kind="stable")
        lengths = rows.lengths[order]
        flat = rows.flat[ranges(rows.offsets[order], lengths)]
        return cls(keys[order], Ragged(flat, offsets_of(lengths)))

    def fill(self, at: Ints, flat: NDArray[Any], starts: Ints) -> None:
        """Copy the rows of the descriptors `at` to these places in `flat`."""
        lengths = self.lengths[at]
        flat[ranges(starts, lengths)] = self.rows.flat[ranges(self.rows.offsets[at], lengths)]

    def write(self, path: Path, encoder: str) -> None:
        """Write a file that appears whole or not at all."""
        content = _bytes_of(self.rows.flat)
        row = _row_bytes(self.kind)
        index = np.empty(len(self.keys), INDEX)
        index["key"], index["rows"] = self.keys, self.lengths
        bounds = (self.rows.offsets * row).tolist()
        index["checksum"] = [
            xxh3_64_intdigest(content[a:b], key)
            for key, a, b in zip(self.keys.tolist(), bounds, bounds[1:], strict=False)
        ]
        dtype, shape = self.kind
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
class Stored:
    """Features in a file, whose index has been checked."""

    path: Path
    keys: Keys  # (n,) ascending
    lengths: Ints  # (n,) rows of each descriptor
    kind: Kind
    checksums: NDArray[np.uint64]  # (n,)
    start: int  # where the rows begin

    @classmethod
    def open(cls, path: Path, encoder: str) -> Stored:
        """Read and check the index; a DamagedError if it is not of this encoder, or not whole."""
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
    def _of(cls, path: Path, encoder: str, head: bytes, index: bytes, start: int) -> Stored:
        try:
            said = json.loads(head)
            dtype, shape = np.dtype(said["dtype"]), tuple(int(size) for size in said["shape"])
            found = np.frombuffer(index, INDEX)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise DamagedError from None
        keys, lengths = found["key"].astype(np.uint64), found["rows"].astype(np.int64)
        whole = said["encoder"] == encoder and dtype.kind in KINDS and all(size > 0 for size in shape)
        if not whole or (lengths < 0).any() or (keys[1:] <= keys[:-1]).any():
            raise DamagedError
        return cls(path, keys, lengths, (dtype, shape), found["checksum"], start)

    def fill(self, at: Ints, flat: NDArray[Any], starts: Ints) -> None:
        """Copy and check the rows of the descriptors `at`; a DamagedError at the first that is damaged."""
        content, row = _bytes_of(flat), _row_bytes(self.kind)
        ends = np.cumsum(self.lengths)
        sizes = self.lengths[at] * row
        places = self.start + (ends - self.lengths)[at] * row
        wanted = (self.keys[at], self.checksums[at], places, starts * row, sizes)
        # Not mapped: a file that is cut short while it is mapped ends the process.
        with self.path.open("rb", buffering=0) as file:
            for key, checksum, place, to, size in zip(*(part.tolist() for part in wanted), strict=True):
                into = content[to : to + size]
                file.seek(place)
                if file.readinto(into) != size or xxh3_64_intdigest(into, key) != checksum:
                    raise DamagedError


Source = Held | Stored


def _row_bytes(kind: Kind) -> int:
    dtype, shape = kind
    return dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _bytes_of(flat: NDArray[Any]) -> memoryview:
    """The same memory, to be read or written byte by byte."""
    return flat.reshape(-1).view(np.uint8).data
