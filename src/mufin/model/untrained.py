"""Labels without training: how well candidates complete a datapoint, by what they are alone (w = ẑ)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mufin.encode.features import Features, Groups
from mufin.model.mufin import Mufin


@torch.no_grad()
def parts(model: Mufin, points: Features, queries: Groups, labels: Features, candidates: Groups) -> Tensor:
    """(B, C, 3): classifier c, similarity a and compatibility f of each query with each candidate."""
    embedder, compatibility = model.embedder, model.compatibility
    assert compatibility is not None
    c, a = model.ranker.untrained(embedder.embed(points, queries), embedder.embed(labels, candidates))
    items, member = np.unique(queries.members, return_inverse=True)
    f = compatibility.score(
        embedder.evidence(points, queries), embedder.evidence(points, Groups.singles(items)),
        member, queries.offsets, embedder.evidence(labels, candidates),
    )  # fmt: skip
    return torch.stack([c, a, f.to(c)], dim=-1)


@torch.no_grad()
def scores(model: Mufin, points: Features, queries: Groups, labels: Features, candidates: Groups) -> Tensor:
    """s (B, C): the learnt mixture of c, a and f, or the paper's of c and a without compatibility."""
    if model.compatibility is None:
        embed = model.embedder.embed
        return model.score(embed(points, queries), embed(labels, candidates))
    return model.compatibility.mixed(parts(model, points, queries, labels, candidates))
