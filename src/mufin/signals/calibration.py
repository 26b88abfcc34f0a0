"""Calibration: the probability that a label is relevant, low for queries unlike the training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

HITS = 10  # top hits per query that the calibration is fitted on
START = (1.0, -1.0, 0.0, 0.0)  # p = sigmoid(s − log Σ eˢ), close to a label's share of Σ eˢ
SCALE = (1.0, 1.0, 4.0, 1.0)
RIDGE = 1e-4
SMALL_SAMPLE = 3.0  # queries; one or two would push all probabilities to 0 or 1
SEEN_RIDGE = 1e-3
HALFWAY = 0.5
BIAS, GIVEN = "bias", "{} given"  # names of weights beside the slopes, which are named after their clue
ALWAYS_SEEN = 20.0  # a bias: its sigmoid is 1
MIN_PROBABILITY = 1e-7  # keeps logarithms finite
MIN_DEVIATION = 1e-6


@dataclass(frozen=True)
class Calibration:
    """p = q · sigmoid(u₀ s + u₁ log Σ eˢ + u₂ + u₃ log r), where r is the label's rank, at most 10.

    q = sigmoid(b + Σ (w f + w′)) is the probability that the query is like the training data, summed over its
    clues f, each with two weights; a clue that the query does not give, NaN, has no share.
    """

    clues: tuple[str, ...]  # names of f
    u: Tensor  # (4,)
    bias: float  # b
    slope: Tensor  # w (F,), at least 0
    given: Tensor  # w′ (F,)

    @classmethod
    def unfitted(cls, clues: tuple[str, ...], u: Sequence[float]) -> Calibration:
        """Create a calibration that takes every query as seen."""
        none = torch.zeros(len(clues))
        return cls(clues, torch.tensor(u), ALWAYS_SEEN, none, none)

    @classmethod
    def of(cls, clues: tuple[str, ...], stored: Mapping[str, Any]) -> Calibration:
        """Restore from `stored`; raise ValueError for an unknown clue or a number that is not finite."""
        found = cls.unfitted(clues, [float(value) for value in stored["calibration"]])
        seen = {name: float(value) for name, value in dict(stored.get("seen", {})).items()}
        bias = seen.pop(BIAS, ALWAYS_SEEN)
        slope = torch.tensor([seen.pop(name, 0.0) for name in clues])
        given = torch.tensor([seen.pop(GIVEN.format(name), 0.0) for name in clues])
        if seen:
            raise ValueError(f"weights for unknown clues {sorted(seen)}")
        numbers = torch.cat([found.u, torch.tensor([bias]), slope, given])
        if found.u.shape != (4,) or not bool(numbers.isfinite().all()):
            raise ValueError("calibration must be four numbers, and all numbers must be finite")
        return replace(found, bias=bias, slope=slope, given=given)

    def to(self, device: torch.device) -> Calibration:
        moved = {name: getattr(self, name).to(device) for name in ("u", "slope", "given")}
        return replace(self, **moved)

    def stored(self) -> dict[str, Any]:
        """Return the JSON for a model folder."""
        seen = {BIAS: self.bias} | dict(zip(self.clues, self.slope.tolist(), strict=True))
        seen |= {GIVEN.format(n): w for n, w in zip(self.clues, self.given.tolist(), strict=True)}
        return {"calibration": self.u.tolist(), "seen": seen}

    def seen(self, familiarity: Tensor) -> Tensor:
        """Return q (B,) from the clues (B, F)."""
        given = ~familiarity.isnan()
        shares = familiarity.nan_to_num() * self.slope + self.given * given
        return (self.bias + shares.sum(1)).sigmoid()

    def probability(self, score: Tensor, familiarity: Tensor) -> Tensor:
        """Return p (B, K) from the scores (B, K) of all candidates; it never increases as scores fall."""
        best, order = score.sort(dim=1, descending=True, stable=True)
        likely = _logit(self.u, best, best).sigmoid().cummin(dim=1).values
        ordered = likely * self.seen(familiarity)[:, None]
        return torch.zeros_like(score).scatter(1, order, ordered).masked_fill(score.isinf(), 0.0)

    def with_seen(self, known: Sequence[Tensor], strange: Sequence[Tensor]) -> Calibration:
        """Fit q by logistic regression on the clues of queries like the training data and of strange ones.

        Both are lists of groups (n, F); groups count the same. What is less than halfway from a strange query
        to a known one is strange, too: real queries are not as strange as made-up ones. Slopes are at least
        0: more familiar is never less probable.
        """
        known, strange = ([group.cpu() for group in groups if len(group)] for groups in (known, strange))
        if not self.clues or not known or not strange:
            return self
        nearer = (_towards(group, torch.cat(known)) for group in strange)
        strange = [*strange, *(group for group in nearer if len(group))]
        clues = torch.cat([*known, *strange])
        target = torch.cat([torch.ones(sum(map(len, known))), torch.zeros(sum(map(len, strange)))])
        weight = torch.cat(
            [torch.full((len(g),), 0.5 / len(gs) / len(g)) for gs in (known, strange) for g in gs]
        )
        given = (~clues.isnan()).float()
        share = (given * weight[:, None]).sum(0).clamp(min=MIN_DEVIATION)
        mean = (clues.nan_to_num() * weight[:, None]).sum(0) / share
        centred = (clues - mean).nan_to_num()
        deviation = ((centred.square() * weight[:, None]).sum(0) / share).sqrt().clamp(min=MIN_DEVIATION)
        n = len(self.clues)

        def loss(step: Tensor) -> Tensor:
            slope, offset = step[1 : n + 1].square(), step[n + 1 :]  # a square is never negative
            logit = step[0] + centred / deviation @ slope + given @ offset
            cross_entropy = F.binary_cross_entropy_with_logits(logit, target, weight, reduction="sum")
            return cross_entropy + SEEN_RIDGE * (slope.square().sum() + offset.square().sum())

        found = minimise(loss, torch.cat([torch.zeros(1), torch.ones(n), torch.zeros(n)]))
        slope = found[1 : n + 1].square() / deviation
        return replace(self, bias=float(found[0]), slope=slope, given=found[n + 1 :] - slope * mean)

    def with_hits(self, score: Tensor, relevant: Tensor, familiarity: Tensor) -> Calibration:
        """Fit u by logistic regression on each query's top hits, given q.

        Of scores (B, K), relevant (B, K) bool and clues (B, F). With very few queries, a ridge keeps u near
        its start.
        """
        best, order = score.topk(min(HITS, score.shape[1]), dim=1)
        hit, present = relevant.gather(1, order).float(), ~best.isinf()
        start, scale = (torch.tensor(u, device=score.device) for u in (START, SCALE))
        if not present.any():
            return replace(self, u=start)
        ridge = max(RIDGE, (SMALL_SAMPLE / int(present.any(1).sum())) ** 2)
        seen = self.seen(familiarity)[:, None]

        def loss(step: Tensor) -> Tensor:
            likely = seen * _logit(start + step * scale, best, score).sigmoid()
            clipped = likely.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
            cross_entropy = F.binary_cross_entropy(clipped[present], hit[present])
            return cross_entropy + ridge * step.square().sum()

        return replace(self, u=start + scale * minimise(loss, torch.zeros_like(start)))


def _towards(strange: Tensor, known: Tensor) -> Tensor:
    """Move the clues (n, F) of strange queries up to halfway to those (m, F) of known ones.

    Only queries that give the same clues can be compared; a strange query without such a partner is left out.
    """
    same = (strange.isnan()[:, None] == known.isnan()).all(2)  # (n, m)
    number, count = torch.arange(len(strange)), same.sum(1)
    partner = (same.cumsum(1) == (number % count.clamp(min=1))[:, None] + 1).int().argmax(1)  # in turn
    step = HALFWAY * (number + 1) / len(strange)
    return (strange + step[:, None] * (known[partner] - strange))[count > 0]


def _logit(u: Tensor, best: Tensor, score: Tensor) -> Tensor:
    """Return the logits of relevance for the n best scores (B, n), in order, among all scores (B, K)."""
    # In f64, so that neither padding nor other queries of the batch change the last bit.
    total = score.double().logsumexp(dim=1, keepdim=True).float()
    finite, total = (each.masked_fill(each.isinf(), 0.0) for each in (best, total))
    rank = torch.arange(1, best.shape[1] + 1, device=best.device).clamp(max=HITS)
    return u[0] * finite + u[1] * total + u[2] + u[3] * rank.log()


def minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Minimise the loss by L-BFGS, starting at `start`."""
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
