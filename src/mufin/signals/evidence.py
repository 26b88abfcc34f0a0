"""Read items for all signals, merge their proposals, and collect their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.encode.embedder import Embedder
from mufin.encode.features import Features
from mufin.progress import SILENT, Progress, Task
from mufin.runtime.recorded import pads
from mufin.signals.base import Candidates, Query, Signal
from mufin.signals.mixture import Evidence

MAX_PADDED_LABELS = 1 << 12  # candidates kept with their padding rather than wait for their number


def read(
    embedder: Embedder,
    signals: Sequence[Signal],
    items: Items,
    cached: bool = True,
    task: Task = SILENT,
) -> Features:
    """Return the frozen encoder outputs of all descriptors, with the readings of each signal."""
    features = embedder.features(items, cached, task)
    readings = {signal.name: signal.read(items, features, cached, task) for signal in signals}
    return replace(features, readings={name: rows for name, rows in readings.items() if rows is not None})


def read_some(
    embedder: Embedder, signals: Sequence[Signal], items: Items, rows: Ints, progress: Progress, name: str
) -> Features:
    """Read features of these rows only; row numbers stay, and other rows are empty."""
    used = np.unique(rows)
    chosen = items.take(used)
    (starts, texts), images = chosen.flat_texts(), chosen.flat_images()[1]
    # A signal with its own network encodes every title once more.
    extra_titles = int(np.count_nonzero(np.diff(starts))) * sum(s.network is not None for s in signals)
    with progress.task(name, len(texts) + len(images) + extra_titles) as task:
        features = read(embedder, signals, chosen, task=task)
    return features.spread(used, len(items))


def proposed(signals: Sequence[Signal], query: Query, k: int) -> Candidates:
    """Merge the proposals of all signals, up to k labels each, into unique candidates."""
    proposals = [labels for signal in signals for labels in signal.propose(query, k)]
    return Candidates(unique(proposals), query.known.labels, first=proposals[0])


def evidence(signals: Sequence[Signal], query: Query, candidates: Candidates) -> Evidence:
    """Collect the columns of all signals; candidates that cannot be compared are marked as not present."""
    columns = torch.cat([signal.score(query, candidates) for signal in signals], dim=-1)  # (B, K, C)
    present = (candidates.rows >= 0) & ~columns.isinf().any(-1)
    frequency = candidates.labels.frequency[candidates.rows.clamp(min=0)]
    shown = columns.masked_fill(~present[..., None], 0.0)
    return Evidence(shown, frequency, present, familiarity(signals, query))


def familiarity(signals: Sequence[Signal], query: Query) -> Tensor:
    """Collect the clues of all signals to whether the queries are like the training data, (B, F)."""
    return torch.cat([signal.familiar(query) for signal in signals], dim=1)


def unique(proposals: Sequence[Tensor]) -> Tensor:
    """Merge proposed labels (B, K_i) into unique candidates (B, K), padded with −1.

    The first proposal comes first, unchanged.

    >>> unique([torch.tensor([[4, 7]]), torch.tensor([[7, 2, -1]])])
    tensor([[4, 7, 2]])
    """
    first = proposals[0]
    if len(proposals) == 1:
        return first
    joined = torch.cat(list(proposals), dim=1)
    # Keep the earliest of equal labels: a stable sort puts it before its duplicates.
    ordered, place = joined.sort(dim=1, stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    labels = joined.masked_fill(~torch.empty_like(fresh).scatter_(1, place, fresh), -1)
    # After the first proposal most entries are now −1: shift the labels left and trim the padding.
    rest = labels[:, first.shape[1] :]
    valid = rest >= 0
    if pads(rest, rest.numel(), MAX_PADDED_LABELS):
        return torch.cat([first, rest], dim=1)
    kept = valid.sort(dim=1, descending=True, stable=True).indices[:, : int(valid.sum(1).max())]
    return torch.cat([first, rest.gather(1, kept)], dim=1)
