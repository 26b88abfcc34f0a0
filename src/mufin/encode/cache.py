"""Outputs of frozen layers on disk, keyed by the content of a descriptor and of the encoder.

One folder per encoder (its fingerprint), in it files of up to 4,096 descriptors (see `shard`). A file appears
whole or not at all: a run that is killed loses at most the file it was at, and several runs may share a
cache. Files are checked when they are read; damaged ones are removed and computed again. Where nothing can be
written, everything is computed and held in memory.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
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
from mufin.encode.shard import DamagedError, Held, Keys, Source, Stored
from mufin.errors import PictureError

SHARD = 4096  # descriptors; also the most that a killed run computes again
PORTION = 256  # descriptors that are prepared together
PORTION_BYTES = 64 << 20  # image bytes beyond which a portion ends earlier
IN_MEMORY = 4 << 30  # bytes of gathered features kept in RAM; beyond, they are mapped from a temporary file
VERSION = 2  # of the files; those of another version are not looked at
SUFFIX = ".features"

Prepare = Callable[[Sequence[Any]], Ragged]
log = logging.getLogger("mufin.encode")


def cache_folder() -> Path:
    """`$MUFIN_CACHE`, else the user's cache folder."""
    named = os.environ.get("MUFIN_CACHE")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mufin"
    except RuntimeError:  # a user without a home, as in some containers: nothing can be kept
        return Path(os.devnull) / "mufin"


def key(descriptor: Any) -> int:
    """64 bits of a hash of the content: a text, image bytes, or an image file."""
    return read(descriptor)[0]


def read(descriptor: Any) -> tuple[int, Any]:
    """The key of a descriptor, and what to encode: the very content that was hashed."""
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
    """What is asked for, and how it is computed."""

    keys: Keys
    descriptors: Sequence[Any]
    prepare: Prepare
    advance: Callable[[int], None]
    read: Callable[[Any], tuple[int, Any]] | None

    def prepared(self, chosen: Ints) -> tuple[Ragged, NDArray[np.bool_]]:
        """The rows of some descriptors, and which of them still have their key."""
        parts, same = [], np.ones(len(chosen), bool)
        for contents in self._portions(chosen, same):
            parts.append(self.prepare(contents))
            self.advance(len(contents))
        return _join(parts), same

    def _portions(self, chosen: Ints, same: NDArray[np.bool_]) -> Iterator[list[Any]]:
        """What is prepared together."""
        contents: list[Any] = []
        size = 0
        for place, row in enumerate(chosen.tolist()):
            content = self.descriptors[row]
            if self.read is not None:
                found, content = self.read(content)
                same[place] = found == self.keys[row]
            contents.append(content)
            size += len(content) if isinstance(content, bytes) else 0
            if len(contents) == PORTION or size >= PORTION_BYTES:
                yield contents
                contents, size = [], 0
        if contents:
            yield contents


class FeatureCache:
    """The features of one encoder."""

    def __init__(self, fingerprint: str, folder: Path | None = None) -> None:
        self.encoder = fingerprint
        self.folder = (folder or cache_folder()) / f"features-{VERSION}" / fingerprint

    def features(
        self,
        keys: Keys,
        descriptors: Sequence[Any],
        prepare: Prepare,
        advance: Callable[[int], None] = lambda _: None,
        read: Callable[[Any], tuple[int, Any]] | None = None,
    ) -> Ragged:
        """The rows of these descriptors, in order; only those not yet on disk are prepared.

        `read` gives the key and the content of a descriptor at the moment it is prepared. One whose key has
        changed since is used but not kept.
        """
        job = _Job(keys, descriptors, prepare, advance, read)
        sources, again = self._stored(), False
        while True:
            missing = np.flatnonzero(~_known(sources, keys))
            job.advance(len(keys) - len(missing))
            # What was computed now comes first, and says which dtype and shape a row has.
            sources = [*self._computed(job, missing, again), *sources]
            rows, damaged = _gather(keys, sources, self.folder)
            if rows is not None:
                return rows
            self._drop([source.path for source in damaged])
            sources = [source for source in sources if not any(source is one for one in damaged)]
            again, job.advance = True, lambda _: None

    def _stored(self) -> list[Source]:
        """The files that can be used; damaged ones are removed."""
        found: list[Source] = []
        damaged, unreadable = [], []
        for path in self._paths():
            try:
                found.append(Stored.open(path, self.encoder))
            except DamagedError:
                damaged.append(path)
            except OSError:
                unreadable.append(path)
        if unreadable:
            log.warning(
                "%s and %d others cannot be read and are not used", unreadable[0], len(unreadable) - 1
            )
        self._drop(damaged)
        return found

    def _paths(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.folder))  # noqa: PTH208 - names are all that is needed
        except OSError:  # no folder yet, or none that can be read
            return []
        # Hidden files are those that other runs are still writing.
        return [self.folder / name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]

    def _drop(self, damaged: list[Path]) -> None:
        """Remove files that cannot be believed, and say so."""
        if not damaged:
            return
        log.warning(
            "cached features are damaged (%s%s) and computed again",
            damaged[0],
            f" and {len(damaged) - 1:,} more files" if len(damaged) > 1 else "",
        )
        for path in damaged:
            with suppress(OSError):  # gone already, or not ours to change
                path.unlink()

    def _computed(self, job: _Job, missing: Ints, again: bool) -> Iterator[Source]:
        """Prepare what is missing, and keep it; in memory where it cannot be read back from the disk.

        Nothing is read back the second time: a disk that damages what it is given would never end.
        """
        for start in range(0, len(missing), SHARD):
            chosen = missing[start : start + SHARD]
            rows, same = job.prepared(chosen)
            kept, changed = np.flatnonzero(same), np.flatnonzero(~same)
            stored = self._write(Held.of(job.keys[chosen[kept]], _take(rows, kept))) if len(kept) else None
            if stored is None or again:
                yield Held.of(job.keys[chosen], rows)
                continue
            yield stored
            if len(changed):
                yield Held.of(job.keys[chosen[changed]], _take(rows, changed))

    def _write(self, held: Held) -> Stored | None:
        """The file that was written; None where none can be."""
        name = hashlib.blake2b(held.keys.tobytes(), digest_size=8).hexdigest()
        path = self.folder / f"{name}{SUFFIX}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            held.write(path, self.encoder)
            return Stored.open(path, self.encoder)
        except (OSError, DamagedError) as error:
            _tell_unwritable(self.folder.parent, getattr(error, "strerror", None) or "damaged when read back")
            return None


@cache
def _tell_unwritable(folder: Path, reason: str) -> None:
    """Once per process: without a cache, everything but time is the same."""
    log.warning("features are not kept: cannot write to %s (%s); set MUFIN_CACHE to a folder", folder, reason)


def _known(sources: list[Source], keys: Keys) -> NDArray[np.bool_]:
    known = np.zeros(len(keys), bool)
    for source in sources:
        known |= _find(source.keys, keys)[1]
    return known


def _gather(keys: Keys, sources: list[Source], folder: Path) -> tuple[Ragged | None, list[Stored]]:
    """Rows from all sources, joined in the order of `keys`; or the files that turned out to be damaged."""
    lengths, places, left = np.zeros(len(keys), np.int64), [], np.ones(len(keys), bool)
    for source in sources:
        at, found = _find(source.keys, keys)
        mine = np.flatnonzero(found & left)
        left[mine] = False
        lengths[mine] = source.lengths[at[mine]]
        if len(mine):
            places.append((source, mine, at[mine]))
    offsets = offsets_of(lengths)
    if not places:
        return Ragged(np.zeros((0, 1), np.float32), offsets), []
    dtype, shape = kind = places[0][0].kind
    flat = _allocate((int(offsets[-1]), *shape), dtype, folder)
    damaged = []
    for source, mine, at in places:
        try:
            if source.kind != kind:
                raise DamagedError
            source.fill(at, flat, offsets[mine])
        except (DamagedError, OSError):
            if not isinstance(source, Stored):
                raise
            damaged.append(source)
    return (None if damaged else Ragged(flat, offsets)), damaged


def _find(sorted_keys: Keys, keys: Keys) -> tuple[Ints, NDArray[np.bool_]]:
    """Where each key stands, and whether it does."""
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
    """In RAM, or mapped from a file without a name if it is large and the disk has room for it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size > IN_MEMORY:
        with suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=".gathered-") as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk ends the process when the pages are written
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "w+", shape=shape)  # the mapping outlives the file
    return np.empty(shape, dtype)
