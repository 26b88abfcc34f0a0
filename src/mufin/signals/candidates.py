"""Candidates: the labels that signals propose for a query, each once, and the evidence of all signals."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mufin.signals.base import Candidates, Query, Signal
from mufin.signals.mixture import Evidence


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
