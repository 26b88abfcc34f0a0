"""Mixture: the evidence of all signals made one score, and a probability."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.signals.base import Column, Signal

PAPER_BETA = 0.7
RARITY = "rarity"  # the part of a score that no signal has: how rare a label is
RARITY_SCALE, PAIR_SCALE = 1.0, 2.0
RIDGE = 1e-3
FEW = 10.0  # queries; a mixture of so many stays where it started: they could make the best match the worst
CALIBRATED = 10  # hits per query that the probability is fitted on
CALIBRATION_START = (1.0, -1.0, 0.0, 0.0)  # p = sigmoid(s − log Σ eˢ), close to a label's share of Σ eˢ
CALIBRATION_SCALE = (1.0, 1.0, 4.0, 1.0)
CALIBRATION_RIDGE = 1e-4
HARDLY_ANY = 3.0  # queries; one or two would make everything certain or impossible


@dataclass(frozen=True)
class Evidence:
    """What is known of each candidate label of each query."""

    columns: Tensor  # (B, K, C), the signals' columns in order
    frequency: Tensor  # (B, K) how many training points had the label
    present: Tensor  # (B, K) bool, False where there are fewer candidates

    @property
    def rarity(self) -> Tensor:
        """1 / (1 + log(1 + frequency)); a label without training counts as the rarest trained one."""
        return 1 / (1 + torch.log1p(self.frequency.clamp(min=1)))

    def take(self, order: Tensor) -> Evidence:
        """The candidates at these places (B, k)."""
        columns = self.columns.gather(1, order[..., None].expand(-1, -1, self.columns.shape[2]))
        return Evidence(columns, self.frequency.gather(1, order), self.present.gather(1, order))

    @staticmethod
    def join(parts: Sequence[Evidence]) -> Evidence:
        """Several batches as one, padded to the widest."""
        width = max(part.present.shape[1] for part in parts)
        wider = [(part, width - part.present.shape[1]) for part in parts]
        return Evidence(
            torch.cat([F.pad(part.columns, (0, 0, 0, more)) for part, more in wider]),
            torch.cat([F.pad(part.frequency, (0, more)) for part, more in wider]),
            torch.cat([F.pad(part.present, (0, more)) for part, more in wider]),
        )


class Terms:
    """φ, what the mixture weighs: columns, columns times rarity, rarity, and products of two columns.

    Products tell where signals confirm one another.
    """

    def __init__(self, signals: Sequence[Signal]) -> None:
        self.columns: list[Column] = [column for signal in signals for column in signal.columns]
        owner = [signal.name for signal in signals for _ in signal.columns]
        self.parts = [*(signal.name for signal in signals), RARITY]
        self.rare = [i for i, column in enumerate(self.columns) if column.by_rarity]
        self.pairs = list(combinations([i for i, column in enumerate(self.columns) if column.pairs], 2))
        named = [column.name for column in self.columns]
        self.names = [
            *named, *(f"{named[i]} × rarity" for i in self.rare), RARITY,
            *(f"{named[i]} × {named[j]}" for i, j in self.pairs),
        ]  # fmt: skip
        scales = [column.scale for column in self.columns]
        self.scale = [*scales, *(scales[i] for i in self.rare), RARITY_SCALE, *[PAIR_SCALE] * len(self.pairs)]
        self.start = [column.start for column in self.columns]
        self.start += [0.0] * (len(self.names) - len(self.start))
        owners = [(name, name) for name in owner] + [(owner[i], owner[i]) for i in self.rare]
        self.owners = [*owners, (RARITY, RARITY), *((owner[i], owner[j]) for i, j in self.pairs)]

    def of(self, evidence: Evidence) -> Tensor:
        """φ (B, K, F), zero where there is no candidate."""
        x, rarity = evidence.columns, evidence.rarity[..., None]
        every = [x, x[..., self.rare] * rarity, rarity]
        if self.pairs:
            left, right = zip(*self.pairs, strict=True)
            every.append(x[..., list(left)] * x[..., list(right)])
        return torch.cat(every, dim=-1).masked_fill(~evidence.present[..., None], 0.0)

    @cached_property
    def ownership(self) -> Tensor:
        """(F, parts): whose part of a score each term is; a product of two is half of each."""
        shares = torch.zeros(len(self.names), len(self.parts))
        for term, both in enumerate(self.owners):
            for name in both:
                shares[term, self.parts.index(name)] += 0.5
        return shares


@dataclass(frozen=True)
class Mixture:
    """s = θ · φ, of which the paper's s = β c + (1 − β) a is one, and a probability p of relevance.

    p = sigmoid(u₀ s + u₁ log Σ eˢ + u₂ + u₃ log r) with r the label's rank, at most 10: it corrects for the
    winner's curse.
    """

    terms: Terms
    weights: Tensor  # θ (F,)
    calibration: Tensor  # u (4,)

    @classmethod
    def of_beta(cls, signals: Sequence[Signal], beta: float) -> Mixture:
        """The paper's fixed mixture; its probability is a rough guess until it is fitted."""
        weights = {"classifier": beta, "similarity": 1 - beta}
        return cls.of(signals, {"weights": weights, "calibration": [10.0, 0.0, -5.0, 0.0]})

    @classmethod
    def of(cls, signals: Sequence[Signal], stored: Mapping[str, Any]) -> Mixture:
        """From what `stored` gives; ValueError where a weight has no term or a number is not finite."""
        terms, weights = Terms(signals), dict(stored["weights"])
        theta = torch.tensor([float(weights.pop(name, 0.0)) for name in terms.names])
        calibration = torch.tensor([float(value) for value in stored["calibration"]])
        if weights:
            raise ValueError(f"weights of unknown terms {sorted(weights)}")
        if calibration.shape != (4,) or not bool(theta.isfinite().all() and calibration.isfinite().all()):
            raise ValueError("a calibration that is not of four numbers, or numbers that are not finite")
        return cls(terms, theta, calibration)

    def stored(self) -> dict[str, Any]:
        """What a model folder keeps: each weight by the name of its term."""
        weights = dict(zip(self.terms.names, self.weights.tolist(), strict=True))
        return {"weights": weights, "calibration": self.calibration.tolist()}

    def score(self, evidence: Evidence) -> Tensor:
        """s (B, K), −inf where there is no candidate."""
        score = self.terms.of(evidence) @ self.weights.to(evidence.columns.device)
        return score.masked_fill(~evidence.present, -torch.inf)

    def parts(self, evidence: Evidence) -> Tensor:
        """(B, K, parts): what each signal adds to the score; they sum to s."""
        device = evidence.columns.device
        shares = self.terms.ownership.to(device) * self.weights.to(device)[:, None]
        return self.terms.of(evidence) @ shares

    def probability(self, score: Tensor) -> Tensor:
        """How likely each label is relevant, given the scores s (B, K) of all candidates of its query.

        Never likelier than a label of a higher score.
        """
        best, order = score.sort(dim=1, descending=True, stable=True)
        chance = _logit(self.calibration.to(score.device), best, best).sigmoid().cummin(dim=1).values
        return torch.zeros_like(score).scatter(1, order, chance).masked_fill(score.isinf(), 0.0)

    def learnt(self, evidence: Evidence, relevant: Tensor) -> Mixture:
        """θ by a softmax over each query's candidates, relevant (B, K) bool; a ridge serves few queries."""
        start, scale = (torch.tensor(v, device=relevant.device) for v in (self.terms.start, self.terms.scale))
        negative = evidence.present & ~relevant
        weights = softmax_weights(
            self.terms.of(evidence), relevant, negative, start, scale, lambda n: max(RIDGE, (FEW / n) ** 2)
        )
        return replace(self, weights=weights.cpu())

    def calibrated(self, evidence: Evidence, relevant: Tensor) -> Mixture:
        """With the probability fitted to these candidates."""
        return replace(self, calibration=fit_calibration(self.score(evidence), relevant).cpu())


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
