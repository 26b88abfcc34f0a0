"""Score untrained labels by their content alone (w = ẑ): how well each candidate completes a datapoint."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mufin.encode.features import Features, Groups
from mufin.model.mufin import Mufin


@torch.no_grad()
def parts(model: Mufin, points: Features, queries: Groups, labels: Features, candidates: Groups) -> Tensor:
    """Return classifier c, similarity a and compatibility f of each query and candidate, (B, C, 3)."""
    embedder, compatibility = model.embedder, model.compatibility
    assert compatibility is not None
    c, a = model.ranker.untrained(embedder.embed(points, queries), embedder.embed(labels, candidates))
    items, member = np.unique(queries.members, return_inverse=True)
    f = compatibility.score(
        embedder.content(points, queries), embedder.content(points, Groups.singles(items)),
        member, queries.offsets, embedder.content(labels, candidates),
    )  # fmt: skip
    return torch.stack([c, a, f.to(c)], dim=-1)


@torch.no_grad()
def scores(model: Mufin, points: Features, queries: Groups, labels: Features, candidates: Groups) -> Tensor:
    """Return s (B, C): the learnt mixture of c, a and f, or β c + (1 − β) a without compatibility."""
    if model.compatibility is None:
        embed = model.embedder.embed
        return model.score(embed(points, queries), embed(labels, candidates))
    return model.compatibility.mixed(parts(model, points, queries, labels, candidates))
