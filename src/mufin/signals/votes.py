"""Votes: the training points that a signal finds near a query vote for the labels they had."""

from __future__ import annotations

import torch
from torch import Tensor

from mufin.retrieve.lists import Lists
from mufin.signals.base import Candidates, Query

FLOOR = 0.01  # a vote this small hardly counts


def tallied(query: Query, name: str, by: str, lists: Lists) -> tuple[Tensor, Tensor]:
    """Labels and votes (B, V) of the neighbours that signal `by` found, counted once per batch."""
    if name not in query.memo:
        query.memo[name] = lists.tally(*query.neighbours[by])
    voted: tuple[Tensor, Tensor] = query.memo[name]
    return voted


def given(candidates: Candidates, voted: Tensor, votes: Tensor) -> Tensor:
    """The votes (B, K) that each candidate got; `voted` (B, V) ascends, −1 behind the last.

    >>> voted, votes = torch.tensor([[2, 7, -1]]), torch.tensor([[0.75, 0.25, 0.0]])
    >>> given(Candidates(torch.tensor([[7, 3, -1]]), None), voted, votes)
    tensor([[0.2500, 0.0000, 0.0000]])
    """
    rows = candidates.rows
    if not voted.shape[1]:
        return torch.zeros(rows.shape, device=rows.device)
    ordered = voted.masked_fill(voted < 0, torch.iinfo(voted.dtype).max)
    place = torch.searchsorted(ordered, rows.contiguous()).clamp(max=voted.shape[1] - 1)
    return votes.gather(1, place).masked_fill((voted.gather(1, place) != rows) | (rows < 0), 0.0)


def strength(votes: Tensor) -> Tensor:
    """log(1 + m / 0.01): whether there are votes at all matters more than how many; see `FLOOR`."""
    return torch.log1p(votes / FLOOR)
