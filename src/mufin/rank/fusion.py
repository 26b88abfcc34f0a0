"""Fusion: the parts of a score — classifier, similarity, memory — made one score, and a probability."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PAPER_BETA = 0.7
FLOOR = 0.01  # a vote this small hardly counts
SAME = 0.9  # words so alike that the label says what the item says
PARTS = (
    "classifier", "similarity", "log memory", "memory", "log words", "words", "overlap", "same words",
)  # fmt: skip
PAIRS = ("classifier × log memory", "classifier × log words", "log memory × log words")
# What came later stands behind, so that older mixtures are the beginning of newer ones.
TITLES = ("log titles", "titles", "log titles by words", "titles by words")
NAMES = (
    *PARTS, *(f"{part} × rarity" for part in PARTS), "rarity", *PAIRS,
    "meaning", "meaning × rarity", *TITLES,
)  # fmt: skip
# Where a learnt mixture starts, and how far a unit of its ridge lets each weight go.
START = (20.0, 0.0, 1.0, *[0.0] * 23)
SCALE = (
    *(own := (20.0, 20.0, 1.0, 5.0, 1.0, 5.0, 5.0, 5.0)), *own, 1.0, *[2.0] * 3,
    20.0, 20.0, 1.0, 5.0, 1.0, 5.0,
)  # fmt: skip
RIDGE = 1e-3
FEW = 10.0  # queries; a mixture of so many stays where it started: they could make the best match the worst
CALIBRATED = 10  # hits a query that the probability is fitted on
CALIBRATION_START = (1.0, -1.0, 0.0, 0.0)  # p = sigmoid(s − log Σ eˢ), close to a label's share of Σ eˢ
CALIBRATION_SCALE = (1.0, 1.0, 4.0, 1.0)
CALIBRATION_RIDGE = 1e-4
HARDLY_ANY = 3.0  # queries; one or two would make everything certain or impossible


@dataclass(frozen=True)
class Parts:
    """What is known of each candidate label of each query, all (B, K)."""

    classifier: Tensor  # c
    similarity: Tensor  # a
    memory: Tensor  # m, the votes of the nearest training points for labels they list
    words: Tensor  # n, the votes of training points with like words for labels they list
    titles: Tensor  # m⁺, the votes of the nearest ones for labels that only their titles say
    titles_by_words: Tensor  # n⁺, those of points with like words
    overlap: Tensor  # o, how alike the words of query and label are
    meaning: Tensor  # t, how alike title and label are to the text encoder before it was trained
    frequency: Tensor  # how many training points had the label
    present: Tensor  # bool, False where there are fewer candidates

    def features(self) -> Tensor:
        """φ (B, K, 26): c, a, m′ = log(1 + m / 0.01), m, n′ = log(1 + n / 0.01), n, o, [o > 0.9]; each times
        the rarity of the label; the rarity; what agrees: c m′, c n′, m′ n′; t, and t times the rarity; and
        what titles say, as m and n are: m⁺′, m⁺, n⁺′, n⁺.

        Rarity is 1 / (1 + log(1 + frequency)); a label without training counts as the rarest trained one.
        """
        rarity = 1 / (1 + torch.log1p(self.frequency.clamp(min=1)))
        votes = (self.memory, self.words, self.titles, self.titles_by_words)
        c, (m, n, said, said_by_words) = self.classifier, (torch.log1p(each / FLOOR) for each in votes)
        same = (self.overlap > SAME).to(self.overlap)
        own = [c, self.similarity, m, self.memory, n, self.words, self.overlap, same]
        plain = torch.stack(own, dim=-1)
        meaning = [self.meaning, self.meaning * rarity]
        titles = [said, self.titles, said_by_words, self.titles_by_words]
        further = torch.stack([rarity, c * m, c * n, m * n, *meaning, *titles], dim=-1)
        features = torch.cat([plain, plain * rarity[..., None], further], dim=-1)
        return features.masked_fill(~self.present[..., None], 0.0)

    def widened(self, width: int) -> Parts:
        """With absent candidates behind, (B, width)."""
        return Parts(*(F.pad(each, (0, width - each.shape[1])) for each in vars(self).values()))

    @staticmethod
    def join(parts: list[Parts]) -> Parts:
        return Parts(*(torch.cat(same) for same in zip(*(vars(p).values() for p in parts), strict=True)))


@dataclass(frozen=True)
class Fusion:
    """s = θ · φ, of which the paper's s = β c + (1 − β) a is one, and a probability p of relevance.

    p = sigmoid(u₀ s + u₁ log Σ eˢ + u₂ + u₃ log r) with r the label's rank, at most 10: who comes first of
    many had luck, too.
    """

    weights: Tensor  # θ (26,)
    calibration: Tensor  # u (4,)

    @classmethod
    def of_beta(cls, beta: float) -> Fusion:
        """The paper's fixed mixture; its probability is a rough guess until it is fitted."""
        return cls(torch.tensor([beta, 1 - beta, *[0.0] * 24]), torch.tensor([10.0, 0.0, -5.0, 0.0]))

    def score(self, parts: Parts) -> Tensor:
        """s (B, K), −inf where there is no candidate."""
        score = parts.features() @ self.weights.to(parts.classifier.device)
        return score.masked_fill(~parts.present, -torch.inf)

    def probability(self, score: Tensor) -> Tensor:
        """How likely each label is relevant, given the scores s (B, K) of all candidates of its query.

        Never likelier than a label of a higher score.
        """
        best, order = score.sort(dim=1, descending=True, stable=True)
        chance = _logit(self.calibration.to(score.device), best, best).sigmoid().cummin(dim=1).values
        return torch.zeros_like(score).scatter(1, order, chance).masked_fill(score.isinf(), 0.0)


def fit_weights(parts: Parts, relevant: Tensor) -> Tensor:
    """θ by a softmax over each query's candidates, relevant (B, K) bool; a ridge makes few queries enough."""
    start, scale = (torch.tensor(values, device=relevant.device) for values in (START, SCALE))
    negative = parts.present & ~relevant
    return softmax_weights(
        parts.features(), relevant, negative, start, scale, lambda n: max(RIDGE, (FEW / n) ** 2)
    )


def softmax_weights(
    features: Tensor,
    relevant: Tensor,
    negative: Tensor,
    start: Tensor,
    scale: Tensor,
    ridge_of: Callable[[int], float],
) -> Tensor:
    """θ (F,) that lifts the relevant (B, K) above the negative (B, K) by features (B, K, F).

    Minimises the mean loss plus ridge_of(queries) times the squared way from `start`, in units of `scale`.
    """
    useful = relevant.any(1) & negative.any(1)
    features, relevant, negative = features[useful], relevant[useful], negative[useful]
    if not len(features):
        return start

    ridge = ridge_of(len(features))

    def loss(step: Tensor) -> Tensor:
        logits = features @ (start + step * scale)
        against = logits.masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
        each = (F.softplus(against - logits) * relevant).sum(1) / relevant.sum(1)
        return each.mean() + ridge * step.square().sum()

    return start + scale * _minimised(loss, torch.zeros_like(start))


def fit_calibration(score: Tensor, relevant: Tensor) -> Tensor:
    """u by logistic regression over the best hits of each query: score (B, K), relevant (B, K) bool.

    A ridge holds it near where it starts while there are hardly any queries.
    """
    best, order = score.topk(min(CALIBRATED, score.shape[1]), dim=1)
    hit, there = relevant.gather(1, order).float(), ~best.isinf()
    start, scale = (torch.tensor(u, device=score.device) for u in (CALIBRATION_START, CALIBRATION_SCALE))
    if not there.any():
        return start
    ridge = max(CALIBRATION_RIDGE, (HARDLY_ANY / int(there.any(1).sum())) ** 2)

    def loss(step: Tensor) -> Tensor:
        chance = _logit(start + step * scale, best, score)
        return F.binary_cross_entropy_with_logits(chance[there], hit[there]) + ridge * step.square().sum()

    return start + scale * _minimised(loss, torch.zeros_like(start))


def _logit(u: Tensor, best: Tensor, score: Tensor) -> Tensor:
    """Of the n best scores (B, n), in order, among all of their query (B, K)."""
    total = score.logsumexp(dim=1, keepdim=True)
    finite, total = (each.masked_fill(each.isinf(), 0.0) for each in (best, total))
    rank = torch.arange(1, best.shape[1] + 1, device=best.device).clamp(max=CALIBRATED)
    return u[0] * finite + u[1] * total + u[2] + u[3] * rank.log()


def _minimised(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """L-BFGS over a handful of weights."""
    point = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([point], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        with torch.enable_grad():
            value = loss(point)
            value.backward()
        return float(value.detach())

    optimizer.step(closure)
    return point.detach()
