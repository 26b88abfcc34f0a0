"""Define predictions: a Hit per label for users, a Ranked batch of tensors for other code."""

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
    """A recommended label, its score, and the parts and evidence that explain the score.

    With the paper's settings score = β · classifier + (1 − β) · similarity. Otherwise it is a mixture of all
    signals, learnt on held-out points.
    """

    label: str
    score: float  # s
    probability: float  # of the label being relevant, calibrated on held-out points
    parts: Mapping[str, float] = field(default_factory=dict)  # contribution of each signal to the score
    evidence: Mapping[str, float] = field(default_factory=dict)  # measurements of each signal, by column name
    text: str = ""

    @property
    def similarity(self) -> float:
        """Return a, the similarity of item and label."""
        return self.evidence["similarity"]

    @property
    def classifier(self) -> float:
        """Return c, the score of the label's classifier."""
        return self.evidence["classifier"]

    @property
    def memory(self) -> float:
        """Return m, the votes of the nearest training points; 0 without a memory."""
        return self.evidence.get("memory", 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name, ready for JSON."""
        return {name: getattr(self, name) for name in HIT_FIELDS}

    def __str__(self) -> str:
        return f"{self.probability:4.0%}  {self.label}  {self.text}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Hit, tuple(self.as_dict().values())

    if not TYPE_CHECKING:  # otherwise type checkers would accept misspelt attributes

        def __getattr__(self, name: str) -> dict[str, float]:
            """Build `parts` or `evidence` of a hit from a batch on first access."""
            rows = self.__dict__.get("_named_rows", {}).get(name)
            if rows is None:
                raise AttributeError(f"a Hit has no attribute {name!r}; it has {', '.join(HIT_FIELDS)}")
            values = self.__dict__[name] = rows.as_dict(self._row)
            return values


HIT_FIELDS = tuple(Hit.__dataclass_fields__)


@dataclass(frozen=True)
class NamedRows:
    """Rows of numbers with named columns."""

    names: Sequence[str]
    values: NDArray[Any]  # (N, len(names))

    @classmethod
    def of(cls, names: Sequence[str], values: Tensor) -> NamedRows:
        """Name the last dimension and flatten the others."""
        return cls(names, values.flatten(0, -2).cpu().numpy())

    @cached_property
    def rows(self) -> list[list[float]]:
        """All rows as lists, converted at once: a caller who reads one hit usually reads more."""
        rows: list[list[float]] = self.values.tolist()
        return rows

    def as_dict(self, row: int) -> dict[str, float]:
        """Return the numbers of a row by name."""
        return dict(zip(self.names, self.rows[row], strict=True))


@dataclass(frozen=True)
class Ranked:
    """The k best labels of each query, best first, padded with −1."""

    labels: Tensor  # (B, k)
    score: Tensor  # (B, k)
    probability: Tensor  # (B, k)
    parts: Tensor  # (B, k, parts)
    evidence: Tensor  # (B, k, columns)

    @staticmethod
    def join(batches: Sequence[Ranked]) -> Ranked:
        """Concatenate batches."""
        return Ranked(*(torch.cat(same) for same in zip(*(vars(b).values() for b in batches), strict=True)))

    def hits(
        self, names: Mapping[int, tuple[str, str]], parts: Sequence[str], evidence: Sequence[str]
    ) -> list[list[Hit]]:
        """Build hits, given the id and first text of each label row and the names of parts and evidence."""
        named = {"parts": NamedRows.of(parts, self.parts), "evidence": NamedRows.of(evidence, self.evidence)}
        width = self.labels.shape[1]
        queries = zip(*(each.tolist() for each in (self.labels, self.score, self.probability)), strict=True)
        return [
            [
                _hit(*names[label], score, probability, named, row)
                for row, (label, score, probability) in enumerate(zip(*ranked, strict=True), number * width)
                if label >= 0
            ]
            for number, ranked in enumerate(queries)
        ]

    @staticmethod
    def empty(n: int, device: torch.device) -> Ranked:
        """Return no labels for each of n queries."""
        none = torch.zeros(n, 0, device=device)
        return Ranked(none.long(), none, none, none[..., None], none[..., None])


def _hit(
    label: str, text: str, score: float, probability: float, named: dict[str, NamedRows], row: int
) -> Hit:
    """Build a hit whose parts and evidence are computed on access: three times as fast as `Hit(…)`."""
    hit = Hit.__new__(Hit)
    hit.__dict__.update(
        label=label, score=score, probability=probability, text=text, _named_rows=named, _row=row
    )
    return hit
