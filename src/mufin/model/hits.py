"""What a model answers: hits for people, rows of numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
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

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return {name: getattr(self, name) for name in FIELDS}

    def __str__(self) -> str:
        return f"{self.probability:4.0%}  {self.label}  {self.text}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Hit, tuple(self.as_dict().values())

    if not TYPE_CHECKING:  # or a misspelt attribute would pass as any

        def __getattr__(self, name: str) -> dict[str, float]:
            """Make `parts` or `evidence` of one of many hits when it is first looked at."""
            numbers = self.__dict__.get("_numbers", {}).get(name)
            if numbers is None:
                raise AttributeError(f"a Hit has no {name!r}; it has {', '.join(FIELDS)}")
            made = self.__dict__[name] = numbers.at(self._place)
            return made


FIELDS = tuple(Hit.__dataclass_fields__)


@dataclass(frozen=True)
class Numbers:
    """Rows of numbers with names."""

    names: Sequence[str]
    values: NDArray[Any]  # (N, len(names))

    @classmethod
    def of(cls, names: Sequence[str], values: Tensor) -> Numbers:
        """The last dimension by name, the others end to end."""
        return cls(names, values.flatten(0, -2).cpu().numpy())

    @cached_property
    def rows(self) -> list[list[float]]:
        """All at once, since who looks at one hit looks at others."""
        rows: list[list[float]] = self.values.tolist()
        return rows

    def at(self, row: int) -> dict[str, float]:
        return dict(zip(self.names, self.rows[row], strict=True))


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

    def hits(
        self, names: Mapping[int, tuple[str, str]], parts: Sequence[str], evidence: Sequence[str]
    ) -> list[list[Hit]]:
        """Hits with the id and first text of each label row, and with parts and evidence by name."""
        numbers = {"parts": Numbers.of(parts, self.parts), "evidence": Numbers.of(evidence, self.evidence)}
        width = self.labels.shape[1]
        rows = zip(*(each.tolist() for each in (self.labels, self.score, self.probability)), strict=True)
        return [
            [
                _hit(*names[row], score, chance, numbers, place)
                for place, (row, score, chance) in enumerate(zip(*each, strict=True), query * width)
                if row >= 0
            ]
            for query, each in enumerate(rows)
        ]

    @staticmethod
    def nothing(n: int, device: torch.device) -> Ranked:
        """No labels for n queries."""
        none = torch.zeros(n, 0, device=device)
        return Ranked(none.long(), none, none, none[..., None], none[..., None])


def _hit(label: str, text: str, score: float, chance: float, numbers: dict[str, Numbers], place: int) -> Hit:
    """One of many hits, in a third of the time: its parts and evidence are made when they are looked at."""
    hit = Hit.__new__(Hit)
    hit.__dict__.update(
        label=label, score=score, probability=chance, text=text, _numbers=numbers, _place=place
    )
    return hit
