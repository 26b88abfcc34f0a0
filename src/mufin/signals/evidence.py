"""From items to queries, from proposals to unique candidates, and the evidence of all signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.encode.embedder import Embedder
from mufin.encode.features import Advance, Features, silent
from mufin.progress import Progress
from mufin.signals.base import Candidates, Query, Signal
from mufin.signals.mixture import Evidence


def read(
    embedder: Embedder,
    signals: Sequence[Signal],
    items: Items,
    cached: bool = True,
    progress: Advance = silent,
) -> Features:
    """The frozen outputs of all descriptors, and what each signal reads of the items."""
    found = embedder.features(items, cached, progress)
    readings = {signal.name: signal.read(items, found, cached, progress) for signal in signals}
    return replace(found, readings={name: rows for name, rows in readings.items() if rows is not None})


def read_some(
    embedder: Embedder, signals: Sequence[Signal], items: Items, rows: Ints, progress: Progress, name: str
) -> Features:
    """Features of these rows, numbered like all items; the others stay empty, their images unread."""
    used = np.unique(rows)
    chosen = items.take(used)
    (starts, texts), pictures = chosen.flat_texts(), chosen.flat_images()[1]
    titles_again = int(np.count_nonzero(np.diff(starts))) * sum(s.network is not None for s in signals)
    with progress.task(name, len(texts) + len(pictures) + titles_again) as task:
        found = read(embedder, signals, chosen, progress=lambda *_: task.advance)
    return found.spread(used, len(items))


def proposed(signals: Sequence[Signal], query: Query, k: int) -> Candidates:
    """What the signals propose, up to k labels each."""
    proposals = [labels for signal in signals for labels in signal.propose(query, k)]
    return Candidates(unique(proposals), query.known.labels)


def evidence(signals: Sequence[Signal], query: Query, candidates: Candidates) -> Evidence:
    """What every signal says of these candidates; a label that cannot be compared is not present."""
    columns = torch.cat([signal.score(query, candidates) for signal in signals], dim=-1)  # (B, K, C)
    present = (candidates.rows >= 0) & ~columns.isinf().any(-1)
    frequency = candidates.labels.frequency[candidates.rows.clamp(min=0)]
    return Evidence(columns.masked_fill(~present[..., None], 0.0), frequency, present)


def unique(proposals: Sequence[Tensor]) -> Tensor:
    """Proposed labels (B, K_i) as unique candidates (B, K), −1 where there are fewer.

    The first proposal stays as it is, at the front.

    >>> unique([torch.tensor([[4, 7]]), torch.tensor([[7, 2, -1]])])
    tensor([[4, 7, 2]])
    """
    first = proposals[0]
    if len(proposals) == 1:
        return first
    every = torch.cat(list(proposals), dim=1)
    # Of equal labels the earliest stands for all; sorted, they lie side by side.
    ordered, place = every.sort(dim=1, stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    labels = every.masked_fill(~torch.empty_like(fresh).scatter_(1, place, fresh), -1)
    # Behind the first proposal mostly −1 is left: move what is there to the left, and cut off the rest.
    rest = labels[:, first.shape[1] :]
    there = rest >= 0
    kept = there.sort(dim=1, descending=True, stable=True).indices[:, : int(there.sum(1).max())]
    return torch.cat([first, rest.gather(1, kept)], dim=1)
