"""Miniature: a small part of a catalogue, whose features repeat those of a few encoded descriptors.

All stages of training run on it at the cost that they have on the whole catalogue, per step and per item.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.ragged import Ints, Ragged, offsets_of
from mufin.data.split import Split
from mufin.encode.embedder import Embedder
from mufin.encode.features import Descriptors, Features, Groups, extract, first_text
from mufin.encode.rows import DenseRows
from mufin.progress import SILENT
from mufin.signals.base import Signal
from mufin.train.data import TrainingData
from mufin.train.validate import hold_out

POINTS, LABELS = 8192, 16_384  # of the part, at most
FEATURE_BYTES = 512 << 20  # of its features, at most


@dataclass
class Sample:
    """Stands in for an encoder: repeats the rows of a few encoded descriptors."""

    rows: Ragged
    width: int

    def fingerprint(self) -> str:
        return ""

    def prepare(self, descriptors: Sequence[Any]) -> Ragged:
        """Return synthetic rows for these descriptors."""
        chosen = np.arange(len(descriptors)) % len(self.rows)
        lengths = self.rows.lengths[chosen]
        if (lengths == 1).all():
            return Ragged(self.rows.flat[chosen], np.arange(len(chosen) + 1, dtype=np.int64))
        flat = [self.rows.flat[self.rows.offsets[i] : self.rows.offsets[i + 1]] for i in chosen]
        return Ragged(np.concatenate(flat), offsets_of(lengths))


@dataclass
class Miniature:
    """Training data of a part of the catalogue, and that part."""

    data: TrainingData
    encoded: TrainingData  # with synthetic outputs of trained encoders; the same data if none is trained
    catalogue: Catalogue
    samples: Mapping[str, Sample]
    reading_seconds: float  # of signals, per item

    @property
    def features(self) -> list[Features]:
        """The features of items, and those of labels if they are others."""
        same = self.data.points is self.data.labels
        return [self.data.points] if same else [self.data.points, self.data.labels]

    @property
    def reading_bytes(self) -> int:
        """The size of what signals read."""
        tensors = (
            t for f in self.features for rows in f.readings.values() for t in vars(rows).values()
            if isinstance(t, Tensor)
        )  # fmt: skip
        return sum(t.nbytes for t in tensors)


def miniature(
    catalogue: Catalogue,
    points: Split,
    config: Config,
    networks: tuple[Embedder, Sequence[Signal]],
    samples: Mapping[str, Sample],
    item_bytes: float,
) -> Miniature:
    """Choose some points and labels, and make their features; an item's have `item_bytes`."""
    rng, relevance, shared = np.random.default_rng(0), points.relevance, catalogue.labels is catalogue.items
    most = max(64, min(POINTS, int(FEATURE_BYTES / max(1.0, item_bytes))))
    chosen = _some(rng, np.arange(len(points), dtype=np.int64), most)
    groups = Groups(points.offsets, points.members).take(chosen)
    wanted = np.unique(relevance[chosen].indices).astype(np.int64)
    more = _some(rng, np.arange(relevance.shape[1], dtype=np.int64), max(64, min(LABELS, 2 * most)))
    labels = np.union1d(_some(rng, wanted, len(more)), more)
    rows = np.unique(groups.members)
    if shared:
        rows = labels = np.union1d(labels, rows)
    started = time.perf_counter()
    items = catalogue.items.take(rows)
    features = _features(items, networks[1], samples)
    label_items, label_features = items, features
    if not shared:
        label_items = catalogue.labels.take(labels)
        label_features = _features(label_items, networks[1], samples)
    seconds = (time.perf_counter() - started) / (len(rows) + len(labels) * (not shared))
    groups = Groups(groups.offsets, np.searchsorted(rows, groups.members))
    related, excluded = (each[chosen][:, labels] for each in (relevance, points.exclude))
    data = TrainingData(features, groups, label_features, related, excluded)
    data = replace(data, held_out=hold_out(data, config.run.validation, rng))
    part = Catalogue(items, None if shared else label_items)
    part.labels_are_items = catalogue.labels_are_items
    return Miniature(data, _encoded(networks[0], data), part, samples, seconds)


def _some(rng: np.random.Generator, numbers: Ints, most: int) -> Ints:
    """Choose at most so many numbers, ascending."""
    return numbers if len(numbers) <= most else np.sort(rng.choice(numbers, most, replace=False))


def _features(items: Items, signals: Sequence[Signal], samples: Mapping[str, Sample]) -> Features:
    """Return synthetic features, with what the signals read of these items."""
    features = extract(items, samples["texts"], samples.get("images"), cached=False)
    readings = {}
    for signal in signals:
        if signal.network is None:
            readings[signal.name] = signal.read(items, features, False, SILENT)
        else:
            titles = extract(items, samples["titles"], None, cached=False).text
            readings[signal.name] = DenseRows(torch.from_numpy(first_text(titles)))
    return replace(features, readings={name: rows for name, rows in readings.items() if rows is not None})


def _encoded(embedder: Embedder, data: TrainingData) -> TrainingData:
    """Return data with synthetic outputs in place of trained encoders; the same data if none is trained."""
    labels = _encoded_features(embedder, data.labels)
    if labels is data.labels:
        return data
    points = labels if data.points is data.labels else _encoded_features(embedder, data.points)
    return replace(data, points=points, labels=labels)


def _encoded_features(embedder: Embedder, features: Features) -> Features:
    if embedder.joint is not None:  # encodes texts and images together, in every epoch
        return features
    parts: list[Descriptors] = []
    for part, encoder in ((features.text, embedder.text), (features.image, embedder.vision)):
        made = part
        if encoder is not None and encoder.depth != 0:
            n = len(part.rows)
            rows = np.random.default_rng(0).standard_normal((n, encoder.width), np.float32)
            made = replace(part, rows=Ragged(rows, np.arange(n + 1, dtype=np.int64)), encoded=True)
        parts.append(made)
    same = parts[0] is features.text and parts[1] is features.image
    return features if same else replace(features, text=parts[0], image=parts[1])
