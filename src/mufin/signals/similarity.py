"""Similarity a: of a query's vector and the label's nearest descriptor or centroid."""

from __future__ import annotations

import torch
from torch import Tensor

from mufin.retrieve.shortlist import Shortlist
from mufin.signals.base import Candidates, Column, Query, Signal


class Similarity(Signal):
    """a = max ⟨x̂, v⟩ over a label's index entries v; the nearest labels form the shortlist R."""

    name = "similarity"
    description = "similarity of item and label"
    columns = (Column("similarity", scale=20.0),)
    clues = ("nearest label",)

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """Propose R, the k nearest labels."""
        found = query.known.index.search(query.vector, k, query.exclude, query.allowed)
        query.memo[self.name] = found
        return [found.labels]

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        """Reuse the similarities of the search; compute those of candidates from other signals."""
        rows, known = candidates.rows, query.known
        found: Shortlist | None = query.memo.get(self.name)
        parts, first = [], 0
        if found is not None and candidates.first is found.labels:
            parts, first = [found.similarity], found.labels.shape[1]
        if rows.shape[1] > first:
            z = candidates.bags.map(lambda part: part[:, first:]) if known.ranker.adapts else None
            rest = rows[:, first:]
            parts.append(candidates.labels.similarity(query.vector, rest, known.entries, z, known.index))
        return torch.cat(parts, dim=1)[..., None]

    def familiar(self, query: Query) -> Tensor:
        if self.name not in query.memo:
            self.propose(query, 1)
        found: Shortlist = query.memo[self.name]
        if not found.similarity.shape[1]:
            return torch.full((len(query), 1), torch.nan, device=query.vector.device)
        best = found.similarity.amax(1, keepdim=True)
        return best.masked_fill(best.isinf(), torch.nan)
