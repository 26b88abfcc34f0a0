"""Ids as 64-bit keys, so that ten million of them and all references to them fit in little memory.

An id of at most ten letters, digits, `-` and `_` (every ASIN) is packed into 60 bits and its length into 4:
such keys are unique. Any other id is hashed to 60 bits.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa

MAX_PACKED_LENGTH = 10  # characters of 6 bits
ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
HASH_TAG = np.uint64(15 << 60)  # in the place of the length: no packed id is that long
NO_CODE = 255
CODES = np.full(256, NO_CODE, np.uint8)  # byte → place in ALPHABET
CODES[np.frombuffer(ALPHABET, np.uint8)] = np.arange(64)


def id_keys(ids: pa.Array) -> np.ndarray:
    """Return the key of each id (no nulls), (n,) uint64.

    >>> id_keys(pa.array(["B000000001", "B000000001", "b", "no ASIN at all"])).shape
    (4,)
    """
    ids = ids.cast(pa.string()) if ids.type != pa.string() else ids
    if not len(ids):
        return np.zeros(0, np.uint64)
    _, offset_buffer, data_buffer = ids.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[ids.offset : ids.offset + len(ids) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    codes = np.append(CODES[data], np.uint8(0))
    starts, lengths = offsets[:-1], np.diff(offsets)
    packed = lengths.astype(np.uint64) << np.uint64(60)
    unpackable = lengths > MAX_PACKED_LENGTH
    for place in range(MAX_PACKED_LENGTH):
        here = np.where(place < lengths, codes[np.minimum(starts + place, len(codes) - 1)], 0)
        unpackable |= here == NO_CODE
        packed |= here.astype(np.uint64) << np.uint64(6 * place)
    for row in np.flatnonzero(unpackable):
        packed[row] = _hash(ids[int(row)].as_py())
    return packed


class KeyIndex:
    """Look up the first row of a key."""

    def __init__(self, all_keys: np.ndarray) -> None:
        self.order = np.argsort(all_keys, kind="stable").astype(np.int32)
        self.sorted = all_keys[self.order]

    def rows(self, wanted: np.ndarray) -> np.ndarray:
        """Return the first row of each key, (n,) int32; −1 for an unknown key."""
        # Sorted lookups move through the sorted keys in one direction, ten times faster than random ones.
        order = np.argsort(wanted, kind="stable")
        queries = wanted[order]
        places = np.minimum(np.searchsorted(self.sorted, queries), max(len(self.sorted) - 1, 0))
        found = np.full(len(wanted), -1, np.int32)
        if len(self.sorted):
            same = self.sorted[places] == queries
            found[order[same]] = self.order[places[same]]
        return found


def _hash(text: str) -> np.uint64:
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.uint64(int.from_bytes(digest, "little") >> 4) | HASH_TAG
