"""Outputs of frozen layers on disk, keyed by the content of a descriptor and of the encoder.

One folder an encoder (its fingerprint), in it one folder a shard: `keys.npy` (sorted), `offsets.npy` and
`flat.npy`. A shard appears whole or not at all, so a run that is killed loses at most the shard it was at.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mufin.ragged import Ints, Ragged, offsets_of, ranges

Keys = NDArray[np.uint64]
SHARD = 4096  # descriptors; also the most that a killed run computes again
IN_MEMORY = 4 << 30  # bytes of gathered features kept in RAM; beyond, they are mapped from a temporary file


def cache_folder() -> Path:
    """`$MUFIN_CACHE`, else the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MUFIN_CACHE") or Path(base) / "mufin")


def key(descriptor: Any) -> int:
    """64 bits of a hash of the content: a text, picture bytes, or a picture file."""
    match descriptor:
        case str():
            content = descriptor.encode("utf-8", "surrogatepass")
        case bytes():
            content = descriptor
        case Path():
            try:
                content = descriptor.read_bytes()
            except (OSError, ValueError):  # ValueError: a NUL in the name
                content = b"missing " + str(descriptor).encode()
        case _:
            content = f"{descriptor.mode} {descriptor.size}".encode() + descriptor.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class FeatureCache:
    """The shards of one encoder."""

    def __init__(self, fingerprint: str, folder: Path | None = None) -> None:
        self.folder = (folder or cache_folder()) / "features" / fingerprint
        self.folder.mkdir(parents=True, exist_ok=True)

    def features(
        self,
        keys: Keys,
        descriptors: Sequence[Any],
        prepare: Callable[[Sequence[Any]], Ragged],
        advance: Callable[[int], None] = lambda _: None,
    ) -> Ragged:
        """The rows of these descriptors, in order; only those not yet on disk are prepared."""
        missing = np.flatnonzero(~self._known(keys))
        advance(len(keys) - len(missing))
        for start in range(0, len(missing), SHARD):
            chosen = missing[start : start + SHARD]
            parts = []
            for part in np.array_split(chosen, max(1, len(chosen) // 256)):
                parts.append(prepare([descriptors[i] for i in part]))
                advance(len(part))
            self._write(keys[chosen], _join(parts))
        return self._gather(keys)

    def _shards(self) -> list[Path]:
        # pathlib's * also matches the hidden folders that other runs are still writing
        return sorted(path.parent for path in self.folder.glob("[!.]*/keys.npy"))

    def _known(self, keys: Keys) -> NDArray[np.bool_]:
        known = np.zeros(len(keys), bool)
        for shard in self._shards():
            known |= _find(np.load(shard / "keys.npy"), keys)[1]
        return known

    def _write(self, keys: Keys, rows: Ragged) -> None:
        order = np.argsort(keys, kind="stable")
        lengths = rows.lengths[order]
        temporary = Path(tempfile.mkdtemp(dir=self.folder, prefix=".tmp-"))
        np.save(temporary / "flat.npy", rows.flat[ranges(rows.offsets[order], lengths)])
        np.save(temporary / "offsets.npy", offsets_of(lengths))
        np.save(temporary / "keys.npy", keys[order])
        name = hashlib.blake2b(keys[order].tobytes(), digest_size=8).hexdigest()
        try:
            temporary.rename(self.folder / name)
        except OSError:  # another run wrote the same shard first
            shutil.rmtree(temporary)

    def _gather(self, keys: Keys) -> Ragged:
        """Rows from all shards, joined in the order of `keys`."""
        shards = [
            (np.load(s / "keys.npy"), np.load(s / "offsets.npy"), s / "flat.npy") for s in self._shards()
        ]
        lengths, places = np.zeros(len(keys), np.int64), []
        for shard_keys, offsets, path in shards:
            at, found = _find(shard_keys, keys)
            mine = np.flatnonzero(found)
            lengths[mine] = np.diff(offsets)[at[mine]]
            places.append((mine, offsets[at[mine]], path))
        offsets = offsets_of(lengths)
        flat: NDArray[Any] | None = None
        for mine, starts, path in places:
            stored = np.load(path, mmap_mode="r")
            if flat is None:
                flat = _allocate((int(offsets[-1]), *stored.shape[1:]), stored.dtype, self.folder)
            flat[ranges(offsets[mine], lengths[mine])] = stored[ranges(starts, lengths[mine])]
        return Ragged(np.zeros((0, 1), np.float32) if flat is None else flat, offsets)


def _find(sorted_keys: Keys, keys: Keys) -> tuple[Ints, NDArray[np.bool_]]:
    """Where each key stands, and whether it does."""
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return at, sorted_keys[at] == keys


def _join(parts: list[Ragged]) -> Ragged:
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.flat for part in parts]), offsets_of(lengths))


def _allocate(shape: tuple[int, ...], dtype: Any, folder: Path) -> NDArray[Any]:
    if int(np.prod(shape)) * np.dtype(dtype).itemsize <= IN_MEMORY:
        return np.empty(shape, dtype)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".gathered-") as file:
        return np.memmap(file, dtype, "w+", shape=shape)  # the mapping outlives the file's name
