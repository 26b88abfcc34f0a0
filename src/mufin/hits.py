"""What a model answers: hits for people, rows of numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hit:
    """A recommended label: its score, the parts of the score, and the evidence behind it.

    With the paper's settings score = β · classifier + (1 − β) · similarity; else it is a mixture of all
    signals that was learnt on held-out points.
    """

    label: str
    score: float  # s
    probability: float  # that the label is relevant, calibrated on held-out points
    parts: Mapping[str, float] = field(default_factory=dict)  # what each signal adds to the score
    evidence: Mapping[str, float] = field(default_factory=dict)  # what each signal says, column by column
    text: str = ""

    @property
    def similarity(self) -> float:
        """a, the similarity of item and label."""
        return self.evidence["similarity"]

    @property
    def classifier(self) -> float:
        """c, what the label's classifier says."""
        return self.evidence["classifier"]

    @property
    def memory(self) -> float:
        """m, the votes of the nearest training points; 0 without a memory."""
        return self.evidence.get("memory", 0.0)

    def __str__(self) -> str:
        return f"{self.probability:4.0%}  {self.label}  {self.text}"


@dataclass(frozen=True)
class Ranked:
    """The k best labels of each query, best first; −1 where fewer are eligible."""

    labels: Tensor  # (B, k)
    score: Tensor  # (B, k)
    probability: Tensor  # (B, k)
    parts: Tensor  # (B, k, parts)
    evidence: Tensor  # (B, k, columns)

    @staticmethod
    def join(batches: Sequence[Ranked]) -> Ranked:
        """Several batches as one."""
        return Ranked(*(torch.cat(same) for same in zip(*(vars(b).values() for b in batches), strict=True)))

    @staticmethod
    def nothing(n: int, device: torch.device) -> Ranked:
        """No labels for n queries."""
        none = torch.zeros(n, 0, device=device)
        return Ranked(none.long(), none, none, none[..., None], none[..., None])
