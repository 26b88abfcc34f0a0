"""On-disk cache of frozen-layer outputs, keyed by descriptor content and encoder.

Each encoder has one folder, named by its fingerprint, with files of up to 4,096 descriptors (see `shard`).
Files are written atomically: a killed run loses at most one file, and several runs can share a cache. Files
are verified when read; damaged ones are removed and recomputed. If the folder is not writable, features are
kept in memory only.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mufin.data.decoding import read_file
from mufin.data.ragged import Ints, Ragged, offsets_of, ranges
from mufin.encode.cache_folder import SUFFIX, cache_folder
from mufin.encode.shard import DamagedError, FileShard, Keys, MemoryShard, Shard
from mufin.errors import PictureError
from mufin.progress import SILENT, Task

SHARD_SIZE = 4096  # descriptors per file; a killed run loses at most this many
CHUNK_SIZE = 256  # descriptors prepared at a time to begin with; twice as many while that is quick
CHUNK_SECONDS = 0.25  # progress advances chunk by chunk
CHUNK_BYTES = 64 << 20  # image bytes after which a chunk ends early
MAX_IN_MEMORY = 4 << 30  # bytes of features held in RAM; more are mapped from a temporary file
VERSION = 2  # of the file format; files of other versions are ignored

Prepare = Callable[[Sequence[Any]], Ragged]
log = logging.getLogger("mufin.encode")


def key(descriptor: Any) -> int:
    """Return a 64-bit hash of a text, image bytes, an image file or a decoded image."""
    return read(descriptor)[0]


def keys(descriptors: Sequence[Any]) -> Keys:
    """Return the key of each descriptor."""
    return np.fromiter((key(descriptor) for descriptor in descriptors), np.uint64, len(descriptors))


def read(descriptor: Any) -> tuple[int, Any]:
    """Return the key of a descriptor and the exact content that was hashed, for encoding."""
    encoded = descriptor
    match descriptor:
        case str():
            content = descriptor.encode("utf-8", "surrogatepass")
        case bytes():
            content = descriptor
        case Path():
            try:
                content = encoded = read_file(descriptor)
            except PictureError:
                content, encoded = b"missing " + str(descriptor).encode("utf-8", "surrogateescape"), b""
        case _:
            content = f"{descriptor.mode} {descriptor.size}".encode() + descriptor.tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"), encoded


@dataclass
class _Job:
    """The descriptors of a request, and how to compute their features."""

    keys: Keys
    descriptors: Sequence[Any]
    prepare: Prepare
    task: Task
    read: Callable[[Any], tuple[int, Any]] | None
    chunk: int = CHUNK_SIZE

    def compute(self, chosen: Ints) -> tuple[Ragged, NDArray[np.bool_]]:
        """Return the rows of some descriptors, and whether each still has its key."""
        parts, same = [], np.ones(len(chosen), bool)
        for contents in self._chunks(chosen, same):
            started = time.perf_counter()
            parts.append(self.prepare(contents))
            self.task.advance(len(contents))
            if time.perf_counter() - started < CHUNK_SECONDS and len(contents) == self.chunk:
                self.chunk = min(2 * self.chunk, SHARD_SIZE)
        return _join(parts), same

    def _chunks(self, chosen: Ints, same: NDArray[np.bool_]) -> Iterator[list[Any]]:
        """Yield contents in chunks; record in `same` whether each still has its key."""
        contents: list[Any] = []
        size = 0
        for place, row in enumerate(chosen.tolist()):
            content = self.descriptors[row]
            if self.read is not None:
                found, content = self.read(content)
                same[place] = found == self.keys[row]
            contents.append(content)
            size += len(content) if isinstance(content, bytes) else 0
            if len(contents) == self.chunk or size >= CHUNK_BYTES:
                yield contents
                contents, size = [], 0
        if contents:
            yield contents


class FeatureCache:
    """Cached features of one encoder."""

    def __init__(self, fingerprint: str, folder: Path | None = None) -> None:
        self.encoder = fingerprint
        self.folder = (folder or cache_folder()) / f"features-{VERSION}" / fingerprint

    def features(
        self,
        keys: Keys,
        descriptors: Sequence[Any],
        prepare: Prepare,
        task: Task = SILENT,
        read: Callable[[Any], tuple[int, Any]] | None = None,
    ) -> Ragged:
        """Return the rows of these descriptors, in order; compute only those not on disk.

        `read` returns the key and content of a descriptor when it is computed. If the key has changed since,
        the features are used but not stored.
        """
        job = _Job(keys, descriptors, prepare, task, read)
        shards, retry = self._open_shards(), False
        while True:
            missing = np.flatnonzero(~_cached(shards, keys))
            job.task.advance(len(keys) - len(missing))
            # New features come first: the first shard defines the dtype and shape of a row.
            shards = [*self._compute(job, missing, retry), *shards]
            rows, damaged = _gather(keys, shards, self.folder)
            if rows is not None:
                return rows
            self._remove_damaged([shard.path for shard in damaged])
            shards = [shard for shard in shards if not any(shard is one for one in damaged)]
            retry, job.task = True, SILENT

    def known(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which of these descriptors are cached."""
        return _cached(self._open_shards(), keys)

    def _open_shards(self) -> list[Shard]:
        """Open all valid files; remove damaged ones."""
        found: list[Shard] = []
        damaged, unreadable = [], []
        for path in self._paths():
            try:
                found.append(FileShard.open(path, self.encoder))
            except DamagedError:
                damaged.append(path)
            except OSError:
                unreadable.append(path)
        if unreadable:
            log.warning("cannot read %s and %d other files; ignored", unreadable[0], len(unreadable) - 1)
        self._remove_damaged(damaged)
        return found

    def _paths(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 - only names are needed
        except OSError:  # missing or unreadable folder
            return []
        # Hidden files are still being written by other runs.
        return [self.folder / name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]

    def _remove_damaged(self, damaged: list[Path]) -> None:
        """Remove damaged files, with a warning."""
        if not damaged:
            return
        log.warning(
            "cached features are damaged and will be recomputed: %s%s",
            damaged[0],
            f" and {len(damaged) - 1:,} more files" if len(damaged) > 1 else "",
        )
        for path in damaged:
            with suppress(OSError):  # already gone, or no permission
                path.unlink()

    def _compute(self, job: _Job, missing: Ints, retry: bool) -> Iterator[Shard]:
        """Compute and store missing features; keep them in memory if they cannot be read back.

        A retry always keeps them in memory, or a disk that corrupts data would cause an endless loop.
        """
        for start in range(0, len(missing), SHARD_SIZE):
            chosen = missing[start : start + SHARD_SIZE]
            rows, same = job.compute(chosen)
            kept, changed = np.flatnonzero(same), np.flatnonzero(~same)
            stored = None
            if len(kept):
                stored = self._store(MemoryShard.of(job.keys[chosen[kept]], _take(rows, kept)))
            if stored is None or retry:
                yield MemoryShard.of(job.keys[chosen], rows)
                continue
            yield stored
            if len(changed):
                yield MemoryShard.of(job.keys[chosen[changed]], _take(rows, changed))

    def _store(self, held: MemoryShard) -> FileShard | None:
        """Write features to a file and open it; None if that fails."""
        name = hashlib.blake2b(held.keys.tobytes(), digest_size=8).hexdigest()
        path = self.folder / f"{name}{SUFFIX}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            held.write(path, self.encoder)
            return FileShard.open(path, self.encoder)
        except (OSError, DamagedError) as error:
            _warn_unwritable(self.folder.parent, getattr(error, "strerror", None) or "damaged when read back")
            return None


@cache
def _warn_unwritable(folder: Path, reason: str) -> None:
    """Warn once per process; without a cache only time is lost."""
    hint = "set MUFIN_CACHE to a writable folder"
    log.warning("features are not cached: cannot write to %s (%s); %s", folder, reason, hint)


def _cached(shards: list[Shard], keys: Keys) -> NDArray[np.bool_]:
    known = np.zeros(len(keys), bool)
    for shard in shards:
        known |= _find(shard.keys, keys)[1]
    return known


def _gather(keys: Keys, shards: list[Shard], folder: Path) -> tuple[Ragged | None, list[FileShard]]:
    """Collect rows from all shards in the order of `keys`; None if files are damaged, and which."""
    lengths, places, left = np.zeros(len(keys), np.int64), [], np.ones(len(keys), bool)
    for shard in shards:
        at, found = _find(shard.keys, keys)
        mine = np.flatnonzero(found & left)
        left[mine] = False
        lengths[mine] = shard.lengths[at[mine]]
        if len(mine):
            places.append((shard, mine, at[mine]))
    offsets = offsets_of(lengths)
    if not places:
        return Ragged(np.zeros((0, 1), np.float32), offsets), []
    dtype, shape = row_type = places[0][0].row_type
    flat = _allocate((int(offsets[-1]), *shape), dtype, folder)
    damaged = []
    for shard, mine, at in places:
        try:
            if shard.row_type != row_type:
                raise DamagedError
            shard.fill(at, flat, offsets[mine])
        except (DamagedError, OSError):
            if not isinstance(shard, FileShard):
                raise
            damaged.append(shard)
    return (None if damaged else Ragged(flat, offsets)), damaged


def _find(sorted_keys: Keys, keys: Keys) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the position of each key, and whether it is present."""
    if not len(sorted_keys):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return at, sorted_keys[at] == keys


def _take(rows: Ragged, which: Ints) -> Ragged:
    if len(which) == len(rows):
        return rows
    lengths = rows.lengths[which]
    return Ragged(rows.flat[ranges(rows.offsets[which], lengths)], offsets_of(lengths))


def _join(parts: list[Ragged]) -> Ragged:
    lengths = np.concatenate([part.lengths for part in parts])
    return Ragged(np.concatenate([part.flat for part in parts]), offsets_of(lengths))


def _allocate(shape: tuple[int, ...], dtype: Any, folder: Path) -> NDArray[Any]:
    """Allocate in RAM, or map an unnamed file if the array is large and fits on the disk."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size > MAX_IN_MEMORY:
        with suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=".gathered-") as file:
            if hasattr(os, "posix_fallocate"):  # otherwise a full disk would kill the process on write
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "w+", shape=shape)  # the mapping outlives the file
    return np.empty(shape, dtype)
