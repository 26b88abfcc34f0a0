"""Change a trained model without training: add and remove labels, remember examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mufin.data.items import Items
from mufin.data.ragged import offsets_of
from mufin.data.thumbnails import thumbnails
from mufin.errors import UsageError
from mufin.retrieve.lists import Lists
from mufin.retrieve.milvus import MilvusIndex
from mufin.signals.base import Query
from mufin.signals.evidence import read

if TYPE_CHECKING:
    from mufin.model.mufin import Mufin


def add_labels(model: Mufin, items: Items) -> None:
    """Add labels without training: α = 1, no centroid."""
    if not len(items):
        return
    _check_new_ids(model, items.ids.to_pylist())
    fresh = _label_query(model, items)
    kept = thumbnails(items) if model.config.run.pictures else items.only("text")
    before = len(model.labels.alive)
    model.signals = tuple(signal.with_labels(fresh) for signal in model.signals)
    model.labels = model.labels.added(kept, fresh.bags)
    last = torch.arange(len(model.labels.alive), device=model.labels.alive.device) >= before
    entries = model.labels.entries(model.config.retrieve.entries).only(last)
    if len(entries):
        model.index = model.index.added(entries.vectors, entries.labels)
    elif isinstance(model.index, MilvusIndex):
        model.index = model.index.grown(before + len(items))
    else:  # the index holds centroids only, which new labels lack: search cannot find them
        model.index = model.new_index()


def _label_query(model: Mufin, items: Items) -> Query:
    """Embed new labels, reading the same modalities as in training."""
    read_as = items.only(model.config.modalities, lacking="empty" if model.labels.own_items else "keep")
    features = read(model.embedder, model.signals, read_as, cached=False)
    for i in np.flatnonzero(features.sizes == 0):
        raise UsageError(
            f"label {items[int(i)].id!r} has no text or readable image; add one "
            f"(this model reads: {model.config.modalities})"
        )
    return model.query(features)


def _check_new_ids(model: Mufin, ids: list[str]) -> None:
    """Reject empty and taken ids; compact the labels if a removed label's id is used again."""
    rows = model.labels.items.rows(ids)
    alive = model.labels.alive.cpu().numpy()
    seen: set[str] = set()
    for name, row in zip(ids, rows, strict=True):
        if not name:
            raise UsageError('a new label has no id; name it: Item(id="desk", texts=["oak desk"])')
        if name in seen or (row >= 0 and alive[row]):
            raise UsageError(f"label id {name!r} is taken; choose another")
        seen.add(name)
    if (rows >= 0).any():
        compact(model)


def compact(model: Mufin) -> None:
    """Drop the rows of removed labels, also from the index and the memory."""
    alive = model.labels.alive
    if bool(alive.all()):
        return
    labels = alive.nonzero()[:, 0].cpu().numpy()
    left = model.points.kept(labels, len(alive), np.arange(len(model.points)))
    points = left.offsets.diff().nonzero()[:, 0].cpu().numpy()  # points that still have a label
    model.points = model.points.kept(labels, len(alive), points)
    model.signals = tuple(signal.keep(labels, points) for signal in model.signals)
    model.labels = model.labels.compact()
    index = model.index
    model.index = index.kept(labels) if isinstance(index, MilvusIndex) else model.new_index()


def add_examples(model: Mufin, items: Items, labels: Sequence[Sequence[str]]) -> None:
    """Add items with their labels to the memory, without training."""
    if not model.config.memory.neighbours:
        raise UsageError("this model has no memory; train one with, for example, memory.neighbours = 50")
    if len(items) != len(labels):
        raise UsageError(f"{len(items)} items, but {len(labels)} lists of labels; provide one list per item")
    rows = [model.labels.rows([ids] if isinstance(ids, str) else ids) for ids in labels]
    device = model.labels.alive.device
    offsets = torch.from_numpy(offsets_of([len(row) for row in rows])).to(device)
    flat = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *rows])).to(device)
    listed = Lists(offsets, flat).unique()
    features = model.features(items)
    for i in np.flatnonzero(features.sizes == 0):
        raise UsageError(model.without_content(items, int(i)))
    fresh = model.query(features)
    model.signals = tuple(signal.with_points(fresh) for signal in model.signals)
    model.points = model.points.followed_by(listed)
    counts = torch.bincount(listed.labels, minlength=len(model.labels.alive))
    model.labels = replace(model.labels, frequency=model.labels.frequency + counts)
