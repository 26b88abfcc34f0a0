"""Losses of Modules I and IV, as functions of similarities and boolean masks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DYNAMIC_MARGIN_RANGE = 0.1, 0.3  # as in PRIME


def margin_loss(
    similarity: Tensor, positive: Tensor, negative: Tensor, margin: float, earlier: Tensor | None = None
) -> Tensor:
    """Return Σ_l Σ_{i ∈ P_l} Σ_{j ∈ N_l} [⟨ẑ_l, x̂_j⟩ − ⟨ẑ_l, x̂_i⟩ + γ]₊, as a mean over the triples.

    similarity is (B, X), labels × datapoints; positive (B, X) marks P_l, negative (B, X) marks N_l. With
    `earlier` similarities, γ is dynamic per triple: clamp(s⁺ − s⁻, 0.1, 0.3) of those.

    >>> s = torch.tensor([[0.5, 0.4]])
    >>> margin_loss(s, torch.tensor([[True, False]]), torch.tensor([[False, True]]), margin=0.2)
    tensor(0.1000)
    """
    label, i = positive.nonzero(as_tuple=True)
    γ: float | Tensor = margin
    if earlier is not None:
        γ = (earlier[label, i][:, None] - earlier[label]).clamp(*DYNAMIC_MARGIN_RANGE)
    # (P, X): the hinge of each positive pair against every datapoint, masked to N_l of its label below
    hinge = (similarity[label] - similarity[label, i][:, None] + γ).clamp(min=0)
    triples = negative[label]
    return (hinge * triples).sum() / triples.sum().clamp(min=1)


def hardest(similarity: Tensor, eligible: Tensor, n: int) -> Tensor:
    """Return a mask (B, X) of the n most similar eligible columns of each row."""
    masked = similarity.detach().masked_fill(~eligible, -torch.inf)
    top = masked.topk(min(n, masked.shape[1]), dim=1).indices
    return torch.zeros_like(eligible).scatter(1, top, True) & eligible


def cosine_loss(score: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Return Σ_{S_i} (1 − ⟨x̂²ˡ, w_l⟩) + Σ_{T_i} [⟨x̂²ᵏ, w_k⟩ − γ]₊, as a mean over the datapoints.

    score (B, k) holds c of each datapoint's own labels; positive and negative (B, k) mark S_i and T_i.

    >>> cosine_loss(
    ...     torch.tensor([[0.75, 0.75]]), *torch.tensor([[[True, False]], [[False, True]]]), margin=0.5
    ... )
    tensor(0.5000)
    """
    pull = ((1 - score) * positive).sum()
    push = ((score - margin).clamp(min=0) * negative).sum()
    return (pull + push) / max(1, len(score))


def decoupled_softmax(logits: Tensor, positive: Tensor, ignored: Tensor | None = None) -> Tensor:
    """Return −log e^{s_p} / (e^{s_p} + Σ_{n negative} e^{s_n}), averaged over positives p, then over rows.

    The other positives of a row are not in the denominator, so positives do not compete with each other.

    >>> decoupled_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]]))  # log 2, not log 3
    tensor(0.6931)
    """
    negative = ~positive if ignored is None else ~(positive | ignored)
    against = logits.masked_fill(~negative, -torch.inf).logsumexp(dim=1, keepdim=True)  # (B, 1)
    # A row without negatives has zero loss, softplus(−inf − s) = 0, but −inf gives NaN gradients.
    against = against.masked_fill(~negative.any(dim=1, keepdim=True), torch.finfo(logits.dtype).min)
    loss = F.softplus(against - logits) * positive
    count = positive.sum(dim=1)
    per_row = loss.sum(dim=1) / count.clamp(min=1)
    return per_row.sum() / (count > 0).sum().clamp(min=1)


class Temperature(nn.Module):
    """Scale cosines by a learnt factor, so that a softmax over them can be sharp."""

    def __init__(self, start: float = 20.0) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor(math.log(start)))

    def forward(self, cosine: Tensor) -> Tensor:
        return cosine * self.log.exp()
