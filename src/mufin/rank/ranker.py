"""The ranker: cross-attention A_C or one of its variants, and the classifiers w_l."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mufin.config import Config
from mufin.encode.attention import CrossAttention
from mufin.encode.bag import Bag, PackedBags


class Classifiers(nn.Module):
    """Free vectors η and mixing weights α = sigmoid(logit), where α is the weight of ẑ.

    Gradients are sparse: the cost of a step depends on the labels in it, not on all labels.
    """

    def __init__(self, n_labels: int, dim: int, learnt: bool = True) -> None:
        super().__init__()
        self.learnt = learnt
        rows = n_labels if learnt else 0
        self.free = nn.Parameter(torch.empty(rows, dim))  # η
        self.logit = nn.Parameter(torch.zeros(rows, 1))  # α = 0.5
        if rows:
            nn.init.xavier_uniform_(self.free)

    def weight(self, labels: Tensor, z: Tensor) -> Tensor:
        """Return w (U, D) of these labels (U,), given their vectors ẑ (U, D); ẑ itself if α is fixed at 1."""
        if not self.learnt:
            return z
        free, logit = self.look_up(labels)
        return combine(logit.sigmoid(), z, free)

    def look_up(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return η (U, D) and the logits of α (U, 1) of these labels."""
        return F.embedding(labels, self.free, sparse=True), F.embedding(labels, self.logit, sparse=True)

    @torch.no_grad()
    def alpha(self, n_labels: int) -> Tensor:
        """Return α of every label, (L,)."""
        return self.logit.sigmoid()[:, 0] if self.learnt else torch.ones(n_labels, device=self.logit.device)

    def sparse_parameters(self) -> list[nn.Parameter]:
        return [self.free, self.logit] if self.learnt else []


def combine(alpha: Tensor, z: Tensor, free: Tensor) -> Tensor:
    """Return w = N(α ẑ + (1 − α) N(η)).

    >>> z, free = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 5.0]])
    >>> combine(torch.tensor([[1.0]]), z, free)
    tensor([[1., 0.]])
    >>> combine(torch.tensor([[0.5]]), z, free)
    tensor([[0.7071, 0.7071]])
    """
    return F.normalize(alpha * z + (1 - alpha) * F.normalize(free, dim=-1), dim=-1)


POINTS_PER_CHUNK = 256


class Concat(nn.Module):
    """The paper's ConCat variant: two feed-forward layers 2D → 2D → D over [x̂¹, ẑ¹] instead of A_C."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        mixed: Tensor = self.layers(torch.cat([x.expand_as(z), z], dim=-1))
        return F.normalize(mixed, dim=-1)


class Ranker(nn.Module):
    """Score c = ⟨x̂²ˡ, w_l⟩ with x̂²ˡ = N(1ᵀ A_C(X̂¹, Ẑ¹_l)), or x̂² = x̂¹ without A_C."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        embed, settings = config.embed, config.rank
        self.cross_attention: CrossAttention | Concat | None
        match settings.cross:
            case "attention":
                self.cross_attention = CrossAttention(embed.dim, settings.blocks, embed.heads, embed.dropout)
            case "concat":
                self.cross_attention = Concat(embed.dim)
            case "none":
                self.cross_attention = None

    @property
    def adapts(self) -> bool:
        return self.cross_attention is not None

    def adapted(self, x: Bag, z: Bag) -> Tensor:
        """Return x̂²ˡ (B, k, D) of each datapoint X̂¹ (B, m, D) for its k labels Ẑ¹ (B, k, n, D)."""
        match self.cross_attention:
            case CrossAttention() as attend:
                bag: Bag = attend(x.map(lambda tensor: tensor[:, None]), z)
                return bag.vector()
            case Concat() as concat:
                mixed: Tensor = concat(x.vector()[:, None], z.vector())
                return mixed
            case _:
                return x.vector()[:, None].expand(-1, z.values.shape[1], -1)

    def forward(self, x: Bag, z: Bag, w: Tensor) -> Tensor:
        """Return c (B, k) for classifiers w (B, k, D)."""
        return (self.adapted(x, z) * w).sum(-1)

    @torch.no_grad()
    def untrained(self, bags: PackedBags, candidates: PackedBags) -> tuple[Tensor, Tensor]:
        """Return c and a (B, C) of each bag with each candidate as an untrained label, w = ẑ."""
        z = candidates.take(torch.arange(len(candidates), device=candidates.rows.device))  # (C, n, D)
        w, rows = z.vector(), F.normalize(z.values, dim=-1)
        classifier, similarity = [], []
        for chosen in torch.arange(len(bags), device=bags.rows.device).split(POINTS_PER_CHUNK):
            x = bags.take(chosen)
            near = torch.einsum("bd,cnd->bcn", x.vector(), rows).masked_fill(~z.mask, -torch.inf)
            similarity.append(near.amax(-1))
            classifier.append(self(x, _expand_labels(z, len(x)), w.expand(len(x), *w.shape)))
        return torch.cat(classifier), torch.cat(similarity)


def _expand_labels(z: Bag, n: int) -> Bag:
    """Expand labels to each of n datapoints: (C, …) → (n, C, …)."""
    return z.map(lambda tensor: tensor.expand(n, *tensor.shape))
