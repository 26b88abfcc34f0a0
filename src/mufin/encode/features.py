"""Features: frozen-layer outputs for every descriptor of many items, and batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mufin.data.items import Items
from mufin.data.ragged import CPU, Ints, Ragged, offsets_of, ranges
from mufin.data.relation import Relation
from mufin.encode.cache import FeatureCache, keys, read
from mufin.encode.rows import Rows
from mufin.progress import SILENT, Task

TINY = 1e-12  # avoids division by zero


class Encoder(Protocol):
    """Common interface of text and image encoders."""

    width: int

    def fingerprint(self) -> str: ...
    def prepare(self, descriptors: Sequence[Any], /) -> Ragged: ...


@dataclass(frozen=True)
class Groups:
    """Datapoints as groups of items: point i combines `members[offsets[i]:offsets[i + 1]]`."""

    offsets: Ints  # (n + 1,)
    members: Ints  # row numbers of items

    @classmethod
    def singles(cls, rows: Ints) -> Groups:
        return cls(np.arange(len(rows) + 1, dtype=np.int64), rows.astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, points: Ints) -> Groups:
        lengths = self.offsets[points + 1] - self.offsets[points]
        return Groups(offsets_of(lengths), self.members[ranges(self.offsets[points], lengths)])


@dataclass(frozen=True)
class Part:
    """Descriptors of one modality in a batch, with their positions in the bags."""

    values: Tensor  # (u, T, ...) prepared rows, padded
    lengths: Tensor  # (u,)
    point: Tensor  # (n,) index of the bag
    slot: Tensor  # (n,) row within the bag
    encoded: bool = False  # values are final encoder outputs
    which: Tensor | None = None  # (n,) index into values if they are deduplicated; else u = n

    def to(self, device: torch.device) -> Part:
        moved = (self.values, self.lengths, self.point, self.slot)
        values, lengths, point, slot = (t.to(device, non_blocking=True) for t in moved)
        which = None if self.which is None else self.which.to(device, non_blocking=True)
        return Part(values, lengths, point, slot, self.encoded, which)

    @property
    def where(self) -> tuple[Tensor, Tensor]:
        """Return the bag and row of each descriptor."""
        return self.point, self.slot

    def each(self, rows: Tensor) -> Tensor:
        """Expand rows per unique value (u, ...) to rows per descriptor (n, ...)."""
        return rows if self.which is None else rows[self.which]


@dataclass(frozen=True)
class Batch:
    """Input of the embedder: descriptors of some datapoints, texts before images."""

    size: int  # B
    width: int  # m, rows of the longest bag
    text: Part | None
    image: Part | None

    def to(self, device: torch.device) -> Batch:
        if device.type == "cpu":
            return self
        return replace(
            self, text=self.text and self.text.to(device), image=self.image and self.image.to(device)
        )


@dataclass(frozen=True)
class Descriptors:
    """All descriptors of one modality: item i has rows `which[offsets[i]:offsets[i + 1]]` of `rows`."""

    rows: Ragged
    which: Ints
    offsets: Ints
    encoded: bool = False  # rows are final encoder outputs, (1, H) each

    @classmethod
    def none(cls, n: int, width: int = 1) -> Descriptors:
        """Return n items without descriptors; `width` is that of other items' rows."""
        rows = Ragged(np.zeros((0, width), np.float32), np.zeros(1, np.int64))
        return cls(rows, np.zeros(0, np.int64), np.zeros(n + 1, np.int64))

    @classmethod
    def of(cls, rows: Ragged, which: Ints, offsets: Ints) -> Descriptors:
        """Omit descriptors without rows, such as broken images."""
        kept = rows.lengths[which] > 0
        total = offsets_of(kept.astype(np.int64))
        return cls(rows, which[kept], total[offsets])

    def select(self, groups: Groups) -> tuple[Ints, Ints]:
        """Return the row and the point of every descriptor of these points."""
        lengths = self.offsets[groups.members + 1] - self.offsets[groups.members]
        of_member = np.repeat(np.arange(len(groups), dtype=np.int64), np.diff(groups.offsets))
        chosen = self.which[ranges(self.offsets[groups.members], lengths)]
        return chosen, np.repeat(of_member, lengths)

    def by_point(self, groups: Groups, device: torch.device) -> Relation:
        """Map each of these points to its rows."""
        chosen, point = self.select(groups)
        offsets = torch.from_numpy(offsets_of(np.bincount(point, minlength=len(groups))))
        return Relation(offsets.to(device), torch.from_numpy(chosen).to(device), len(self.rows))


@dataclass(frozen=True)
class Features:
    """Input of training and prediction in place of texts and images."""

    text: Descriptors
    image: Descriptors
    readings: Mapping[str, Rows] = field(default_factory=dict)  # input of each signal

    def __len__(self) -> int:
        return len(self.text.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Return the number of descriptors per item, (n,)."""
        return np.diff(self.text.offsets) + np.diff(self.image.offsets)

    def spread(self, rows: Ints, n: int) -> Features:
        """Assign the features to `rows` (ascending) of n items; the others have none."""
        text, image = (_spread_parts(part, rows, n) for part in (self.text, self.image))
        return Features(text, image, {name: read.spread(rows, n) for name, read in self.readings.items()})

    def batch(self, groups: Groups) -> Batch:
        """Assemble these points on the CPU, ready for the embedder."""
        return Loader(self, groups, CPU).batch(torch.arange(len(groups)))


class Loader:
    """Assembles batches on a device, which also holds the features if they fit."""

    def __init__(self, features: Features, groups: Groups, device: torch.device) -> None:
        self.kinds = (features.text, features.image)
        self.rows = [kind.rows.on(device) for kind in self.kinds]
        self.owned = [kind.by_point(groups, device) for kind in self.kinds]
        sizes = self.owned[0].sizes + self.owned[1].sizes
        self.most = int(sizes.max()) if len(groups) else 0  # descriptors per point

    def batch(self, points: Tensor) -> Batch:
        """Assemble these points (B,), ready for the embedder."""
        texts, images = (owned.sizes_of(points) for owned in self.owned)  # (B,)
        width = self.most
        if width > 1:  # otherwise known without a GPU synchronisation
            width = int((texts + images).max()) if len(points) else 1
        none = torch.zeros_like(texts)
        parts = self._part(0, points, none), self._part(1, points, texts)
        return Batch(len(points), max(width, 1), *parts)

    def _part(self, kind: int, points: Tensor, first: Tensor) -> Part | None:
        """Assemble one modality; the rows of each point begin at slot `first` (B,)."""
        of, rows = self.kinds[kind], self.rows[kind]
        if not len(of.which):
            return None
        point, slot, chosen = self.owned[kind].pairs_of(points)
        if not len(chosen):
            return None
        which = None
        if not of.encoded and not rows.vectors:  # encode equal descriptors once
            unique, place = chosen.unique(return_inverse=True)
            if len(unique) < len(chosen):
                chosen, which = unique, place
        values, lengths = rows.take(chosen)
        return Part(values, lengths, point, slot + first[point], of.encoded, which)


def _spread_parts(part: Descriptors, rows: Ints, n: int) -> Descriptors:
    sizes = np.zeros(n, np.int64)
    sizes[rows] = np.diff(part.offsets)
    return replace(part, offsets=offsets_of(sizes))


def extract(
    items: Items,
    text: Encoder | None,
    image: Encoder | None,
    cached: bool = True,
    task: Task = SILENT,
) -> Features:
    """Run the frozen layers over every descriptor; `cached` reuses results stored on disk."""
    parts = []
    for encoder, flat in ((text, items.flat_texts), (image, items.flat_images)):
        if encoder is None:
            parts.append(Descriptors.none(len(items)))
            continue
        offsets, descriptors = flat()
        if not len(descriptors):
            parts.append(Descriptors.none(len(items), encoder.width))
            continue
        listed = descriptors if isinstance(descriptors, Sequence) else descriptors.to_pylist()
        rows, which = _prepared(encoder, listed, cached, task)
        parts.append(Descriptors.of(rows, which, offsets))
    return Features(parts[0], parts[1])


def first_text_of(
    items: Items, encoder: Encoder, cached: bool = True, task: Task = SILENT
) -> NDArray[np.float16]:
    """Encode the first text of each item: unit rows (n, H), zero for an item without text."""
    offsets, texts = items.flat_texts()
    named = np.flatnonzero(np.diff(offsets))
    if not len(named):
        return np.zeros((len(items), encoder.width), np.float16)
    titles = texts.take(offsets[named]).to_pylist()
    rows, which = _prepared(encoder, titles, cached, task)
    return first_text(Descriptors(rows, which, offsets_of(np.diff(offsets) > 0)))


def first_text(texts: Descriptors) -> NDArray[np.float16]:
    """Return the encoded first text of each item: unit rows (n, H), zero for an item without text."""
    named = np.flatnonzero(np.diff(texts.offsets))
    found = np.zeros((len(texts.offsets) - 1, texts.rows.flat.shape[1]), np.float16)
    if len(named):
        rows = texts.rows.flat[texts.which[texts.offsets[named]]]
        found[named] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY)
    return found


def _prepared(encoder: Encoder, descriptors: Sequence[Any], cached: bool, task: Task) -> tuple[Ragged, Ints]:
    """Return frozen-layer outputs, and the row of each descriptor."""
    if not cached:
        return encoder.prepare(descriptors), np.arange(len(descriptors), dtype=np.int64)
    unique, first, which = np.unique(keys(descriptors), return_index=True, return_inverse=True)
    task.advance(len(descriptors) - len(unique))
    chosen = _Chosen(descriptors, first)
    rows = FeatureCache(encoder.fingerprint()).features(unique, chosen, encoder.prepare, task, read)
    return rows, which.astype(np.int64)


class _Chosen(Sequence[Any]):
    """A view of selected elements that keeps images lazy."""

    def __init__(self, of: Sequence[Any], which: Ints) -> None:
        self.of, self.which = of, which

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, i: Any) -> Any:
        return self.of[int(self.which[i])]
