"""P@1 on held-out training points while training goes on, and the choice of β on them afterwards."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix

from mufin.encode.embedder import Embedder
from mufin.encode.ragged import Ints
from mufin.model import Mufin, combine
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker
from mufin.train.data import TrainingData, membership

MOST = 1000  # points held out
BETAS = [round(0.05 * step, 2) for step in range(21)]


def hold_out(relevance: csr_matrix, share: float, rng: np.random.Generator) -> Ints:
    """A random share of the points that have labels, at most 1,000, to be kept away from training."""
    usable = np.flatnonzero(np.diff(relevance.indptr))
    n = min(MOST, int(share * len(usable)))
    return np.sort(rng.choice(usable, n, replace=False)).astype(np.int64)


@torch.no_grad()
def precision_at_1(
    embedder: Embedder,
    held: TrainingData,
    ranker: Ranker | None = None,
    classifiers: Classifiers | None = None,
) -> float:
    """How often the best label by ⟨x̂, ẑ⟩ (Module I) or by classifier (Module IV) is relevant, in %."""
    bags = embedder.embed(held.labels, held.label_groups)
    w = z = bags.vectors()  # (L, D)
    if classifiers is not None:
        w = classifiers.weight(torch.arange(len(z), device=z.device), z)
    points = embedder.embed(held.points, held.groups)
    score = points.vectors() @ w.T  # (B, L)
    score = score.masked_fill(_dense(held.exclude, score.shape[1]).to(score.device), -torch.inf)
    best, top = score.topk(min(100, score.shape[1]), dim=1)  # (B, 100)
    if ranker is not None and ranker.adapts:
        training = ranker.training
        ranker.eval()
        x = points.take(torch.arange(len(points), device=z.device))
        again = ranker(x, bags.take(top), w[top]).masked_fill(best == -torch.inf, -torch.inf)
        top = top.gather(1, again.argmax(1, keepdim=True))
        ranker.train(training)
    return 100 * float(
        _dense(held.relevance, score.shape[1]).to(top.device).gather(1, top[:, :1]).float().mean()
    )


def fit_beta(model: Mufin, held: TrainingData) -> float:
    """The β of the best P@1 + P@5 on held-out points; ties go to the β nearest the paper's 0.7."""
    bags = model.embedder.embed(held.points, held.groups)
    ranked = model.rank(bags, model.config.retrieve.shortlist, held.exclude)
    relevant = _relevant(ranked.labels.cpu().numpy(), held.relevance)

    def quality(beta: float) -> tuple[float, float]:
        score = combine(beta, ranked.classifier, ranked.similarity).masked_fill(ranked.labels < 0, -torch.inf)
        best = score.topk(min(5, score.shape[1]), dim=1).indices.cpu()
        hits = relevant.gather(1, best).float()
        return float(hits[:, 0].mean() + hits.mean()), -abs(beta - 0.7)

    return max(BETAS, key=quality)


def _relevant(labels: Ints, relevance: csr_matrix) -> torch.Tensor:
    rows = np.repeat(np.arange(len(labels)), labels.shape[1])
    hit = np.asarray(relevance[rows, np.maximum(labels, 0).ravel()]).reshape(labels.shape)
    return torch.from_numpy(hit & (labels >= 0))


def _dense(relation: csr_matrix, n_labels: int) -> torch.Tensor:
    return membership(relation, np.arange(relation.shape[0]), np.arange(n_labels, dtype=np.int64))
