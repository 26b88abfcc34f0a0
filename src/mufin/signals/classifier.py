"""Classifier c: the score of the label's one-vs-all classifier for the query adapted to the label."""

from __future__ import annotations

from torch import Tensor

from mufin.encode.bag import Bag
from mufin.signals.base import Candidates, Column, Query, Signal


class Classifier(Signal):
    """c = ⟨x̂²ˡ, w_l⟩, with x̂²ˡ from cross-attention of X̂¹ and Ẑ¹_l if the model has it."""

    name = "classifier"
    description = "score of the label's trained classifier"
    columns = (Column("classifier", start=20.0, scale=20.0, pairs=True),)

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        rows = candidates.rows.clamp(min=0)  # (B, K)
        x, ranker = query.bag, query.known.ranker
        if ranker.adapts:
            z = candidates.bags
        else:
            z = Bag(x.values.new_zeros(*rows.shape, 1, 1), x.mask.new_zeros(*rows.shape, 1))
        scored: Tensor = ranker(x, z, candidates.labels.classifiers(rows))
        return scored[..., None]
