"""Define predictions: a Hit per label for users, a Ranked batch of tensors for other code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mufin.data import html
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.data.items import Items

SHOWN = html.ROWS  # hits or items that `repr` shows


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        text = f", text={self.text!r}" if len(self.text) <= 60 else f", text={self.text[:59] + '…'!r}"
        numbers = f"probability={self.probability:.3f}, score={self.score:.3f}"
        return f"Hit({self.label!r}, {numbers}{text if self.text else ''})"

    def __str__(self) -> str:
        text = f"  {self.text}" if self.text not in ("", self.label) else ""
        return f"{self.probability:4.0%}  {self.label}{text}"

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


class Hits(list[Hit]):
    """The best labels of one item, best first: a list that a notebook shows as a table.

    >>> Hits([Hit("desk-1", 0.9, 0.75, text="oak desk")])
     75%  desk-1  oak desk
    """

    def __init__(self, hits: Iterable[Hit] = (), labels: Items | None = None) -> None:
        super().__init__(hits)
        self._labels = labels  # of the model, for their thumbnails

    def to_frame(self) -> Any:
        """Return a pandas data frame: rank, label, text, probability, score, and each part of the score."""
        return _frame(_row(rank, hit) for rank, hit in enumerate(self, 1))

    def at_least(self, probability: float) -> Hits:
        """Return the hits with at least this probability."""
        if probability <= 0:
            return self
        return Hits([hit for hit in self if hit.probability >= probability], self._labels)

    def __repr__(self) -> str:
        more = [f"… and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []
        return "\n".join([*map(str, self[:SHOWN]), *more]) or "no hits"

    def _repr_html_(self) -> str:
        shown = self[:SHOWN]
        rows = [["", html.text(hit.label), html.text(hit.text), _bar(hit.probability)] for hit in shown]
        if self._labels is not None:
            places = self._labels.rows([hit.label for hit in shown]).tolist()
            for row, place in zip(rows, places, strict=True):
                row[0] = "".join(map(html.image, self._labels.pictures.row(place)[:1])) if place >= 0 else ""
        return html.table(["", "label", "text", "probability"], rows, len(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return Hits, (list(self),)


class HitLists(list[Hits]):
    """The best labels of each of several items: a list with one `Hits` per item."""

    def __init__(self, lists: Iterable[Hits] = (), ids: Sequence[str] = ()) -> None:
        super().__init__(lists)
        self.ids = list(ids)  # of the items; "" where an item has none

    def to_frame(self) -> Any:
        """Return a pandas data frame of all hits; `item` is the id of an item, or else its number."""
        return _frame(
            {"item": name} | _row(rank, hit)
            for name, hits in zip(self.names(), self, strict=True)
            for rank, hit in enumerate(hits, 1)
        )

    def names(self) -> list[str | int]:
        """Return the id of each item, or its number if it has none."""
        ids = self.ids if len(self.ids) == len(self) else [""] * len(self)
        return [name or number for number, name in enumerate(ids)]

    def __repr__(self) -> str:
        shown = zip(self.names()[:SHOWN], self, strict=False)
        lines = [f"{name}: {', '.join(hit.label for hit in hits[:3]) or 'no hits'}" for name, hits in shown]
        more = [f"… and {len(self) - SHOWN:,} more items"] if len(self) > SHOWN else []
        return "\n".join([*lines, *more]) or "no items"

    def _repr_html_(self) -> str:
        rows = [
            [html.text(str(name)), ", ".join(html.text(hit.label) for hit in hits[:3]) or "no hits"]
            for name, hits in zip(self.names()[:SHOWN], self, strict=False)
        ]
        return html.table(["item", "best labels"], rows, len(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return HitLists, (list(self), self.ids)


def _row(rank: int, hit: Hit) -> dict[str, Any]:
    return {
        "rank": rank, "label": hit.label, "text": hit.text, "probability": hit.probability,
        "score": hit.score, **hit.parts,
    }  # fmt: skip


def _frame(rows: Iterable[dict[str, Any]]) -> Any:
    try:
        import pandas
    except ImportError:
        raise UsageError(
            "to_frame needs pandas; run `pip install pandas`, or use [hit.as_dict() for hit in hits]"
        ) from None
    columns = ["rank", "label", "text", "probability", "score"]
    listed = list(rows)
    return pandas.DataFrame(listed) if listed else pandas.DataFrame(columns=columns)


def _bar(probability: float) -> str:
    """Return a probability as text over a bar of that length."""
    share = f"{100 * probability:.0f}%"
    return (
        f'<div style="background:linear-gradient(90deg,#8ab4f880 {share},transparent {share});'
        f'min-width:6em">{share}</div>'
    )


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
