"""Mixture: combine the evidence of all signals into a score and a probability."""

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
from mufin.signals.calibration import Calibration, minimise

PAPER_BETA = 0.7
RARITY = "rarity"  # the part of a score that belongs to no signal
RARITY_SCALE, PAIR_SCALE = 1.0, 2.0
RIDGE = 1e-3
SMALL_SAMPLE = 10.0  # queries; with fewer, the ridge keeps weights near their start to prevent overfitting
GUESSED_CALIBRATION = (10.0, 0.0, -5.0, 0.0)


@dataclass(frozen=True)
class Evidence:
    """The signals' columns for the candidate labels of each query."""

    columns: Tensor  # (B, K, C), in the order of the signals
    frequency: Tensor  # (B, K) number of training points with the label
    present: Tensor  # (B, K) bool, False for padding
    familiarity: Tensor  # (B, F) clues of the signals to whether the query is like the training data

    @property
    def rarity(self) -> Tensor:
        """1 / (1 + log(1 + frequency)); an untrained label counts as the rarest trained one."""
        return 1 / (1 + torch.log1p(self.frequency.clamp(min=1)))

    def take(self, order: Tensor) -> Evidence:
        """Select the candidates at these positions (B, k)."""
        columns = self.columns.gather(1, order[..., None].expand(-1, -1, self.columns.shape[2]))
        frequency, present = self.frequency.gather(1, order), self.present.gather(1, order)
        return Evidence(columns, frequency, present, self.familiarity)

    @staticmethod
    def join(parts: Sequence[Evidence]) -> Evidence:
        """Concatenate batches, padded to the widest."""
        width = max(part.present.shape[1] for part in parts)
        wider = [(part, width - part.present.shape[1]) for part in parts]
        return Evidence(
            torch.cat([F.pad(part.columns, (0, 0, 0, more)) for part, more in wider]),
            torch.cat([F.pad(part.frequency, (0, more)) for part, more in wider]),
            torch.cat([F.pad(part.present, (0, more)) for part, more in wider]),
            torch.cat([part.familiarity for part in parts]),
        )


class Terms:
    """φ, the terms of the mixture: columns, columns × rarity, rarity, and products of two columns.

    Products reward signals that agree.
    """

    def __init__(self, signals: Sequence[Signal]) -> None:
        self.columns: list[Column] = [column for signal in signals for column in signal.columns]
        owner = [signal.name for signal in signals for _ in signal.columns]
        self.parts = [*(signal.name for signal in signals if signal.columns), RARITY]
        self.clues = tuple(clue for signal in signals for clue in signal.clues)
        self.rare = [i for i, column in enumerate(self.columns) if column.by_rarity]
        self.pairs = list(combinations([i for i, column in enumerate(self.columns) if column.pairs], 2))
        self.factors: dict[torch.device, tuple[Tensor, ...]] = {}  # kept per device, as copying is slow
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
        """Return φ (B, K, F), zero for padding."""
        x, rarity = evidence.columns, evidence.rarity[..., None]
        rare, left, right = self._factors(x.device)
        terms = [x, x[..., rare] * rarity, rarity, x[..., left] * x[..., right]]
        return torch.cat(terms, dim=-1).masked_fill(~evidence.present[..., None], 0.0)

    def _factors(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the columns multiplied by the rarity, and the left and right columns of all products."""
        if device not in self.factors:
            left, right = zip(*self.pairs, strict=True) if self.pairs else ((), ())
            columns = [torch.tensor(each, dtype=torch.int64) for each in (self.rare, left, right)]
            self.factors[device] = tuple(each.to(device) for each in columns)
        return self.factors[device]

    @cached_property
    def ownership(self) -> Tensor:
        """(F, parts): the share of each term per part of the score; a product is split in half."""
        shares = torch.zeros(len(self.names), len(self.parts))
        for term, both in enumerate(self.owners):
            for name in both:
                shares[term, self.parts.index(name)] += 0.5
        return shares


@dataclass(frozen=True)
class Mixture:
    """The score s = θ · φ, a generalisation of the paper's s = β c + (1 − β) a, and its calibration."""

    terms: Terms
    weights: Tensor  # θ (F,)
    calibration: Calibration

    @classmethod
    def of_beta(cls, signals: Sequence[Signal], beta: float) -> Mixture:
        """Create the paper's fixed mixture; its probability is a rough guess until calibrated."""
        weights = {"classifier": beta, "similarity": 1 - beta}
        return cls.of(signals, {"weights": weights, "calibration": GUESSED_CALIBRATION})

    @classmethod
    def of(cls, signals: Sequence[Signal], stored: Mapping[str, Any]) -> Mixture:
        """Restore from `stored`; raise ValueError for an unknown term or a number that is not finite."""
        terms, weights = Terms(signals), dict(stored["weights"])
        theta = torch.tensor([float(weights.pop(name, 0.0)) for name in terms.names])
        if weights:
            raise ValueError(f"weights for unknown terms {sorted(weights)}")
        if not bool(theta.isfinite().all()):
            raise ValueError("all weights must be finite")
        return cls(terms, theta, Calibration.of(terms.clues, stored))

    def stored(self) -> dict[str, Any]:
        """Return the JSON for a model folder: weights by term name, and the calibration."""
        weights = dict(zip(self.terms.names, self.weights.tolist(), strict=True))
        return {"weights": weights} | self.calibration.stored()

    def to(self, device: torch.device) -> Mixture:
        return Mixture(self.terms, self.weights.to(device), self.calibration.to(device))

    @cached_property
    def shares(self) -> Tensor:
        """(F, parts): the weight of each term in each part of the score."""
        return self.terms.ownership.to(self.weights.device) * self.weights[:, None]

    def score(self, evidence: Evidence) -> Tensor:
        """Return s (B, K), −inf for padding."""
        score = self.terms.of(evidence) @ self.weights
        return score.masked_fill(~evidence.present, -torch.inf)

    def parts(self, evidence: Evidence) -> Tensor:
        """Return the contribution of each signal to the score, (B, K, parts); they sum to s."""
        return self.terms.of(evidence) @ self.shares

    def learnt(self, evidence: Evidence, relevant: Tensor) -> Mixture:
        """Fit θ by a softmax over each query's candidates, with a ridge; relevant is (B, K) bool."""
        start, scale = (torch.tensor(v, device=relevant.device) for v in (self.terms.start, self.terms.scale))
        negative = evidence.present & ~relevant
        features = self.terms.of(evidence)
        weights = softmax_weights(
            features, relevant, negative, start, scale, lambda n: max(RIDGE, (SMALL_SAMPLE / n) ** 2)
        )
        return replace(self, weights=weights)

    def calibrated(
        self, evidence: Evidence, relevant: Tensor, known: Sequence[Tensor], strange: Sequence[Tensor]
    ) -> Mixture:
        """Fit the calibration to these candidates; see `Calibration.with_seen` for the other two."""
        fitted = self.calibration.with_seen([evidence.familiarity, *known], strange).to(self.weights.device)
        return replace(
            self, calibration=fitted.with_hits(self.score(evidence), relevant, evidence.familiarity)
        )


def softmax_weights(
    features: Tensor,
    relevant: Tensor,
    negative: Tensor,
    start: Tensor,
    scale: Tensor,
    ridge_of: Callable[[int], float],
) -> Tensor:
    """Fit θ (F,) so that relevant candidates (B, K) score above negative ones (B, K).

    Minimise the mean softmax loss over features (B, K, F) plus ridge_of(number of queries) times the squared
    distance from `start`, in units of `scale`.
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

    return start + scale * minimise(loss, torch.zeros_like(start))
