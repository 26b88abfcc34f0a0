"""Signal: one source of evidence about a (query, label) pair, and what all signals share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from mufin.config import Config
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.encode.bag import Bag, PackedBags
from mufin.encode.checkpoints import Layout
from mufin.encode.features import Advance, Features, Groups
from mufin.encode.rows import Rows
from mufin.errors import ModelError
from mufin.files.folder import AGAIN
from mufin.files.tensors import Tensors, read_tensors, write_tensors
from mufin.retrieve.lists import Lists
from mufin.retrieve.shortlist import among, pair_keys

if TYPE_CHECKING:
    from mufin.encode.embedder import Embedder
    from mufin.model.labels import Labels
    from mufin.rank.ranker import Ranker
    from mufin.retrieve.build import Index
    from mufin.retrieve.entries import Kind


@dataclass(frozen=True)
class Column:
    """One number per (query, label) that a signal gives the mixture."""

    name: str  # its weight is stored under this name
    start: float = 0.0  # where a learnt weight starts
    scale: float = 5.0  # how far one unit of the ridge lets the weight move
    by_rarity: bool = True  # also weighted by how rare the label is
    pairs: bool = False  # also multiplied with every other such column: they may confirm one another


@dataclass(frozen=True)
class Known:
    """What a trained model knows and every signal may use."""

    labels: Labels
    index: Index  # over the labels
    entries: tuple[Kind, ...]  # what a label has in it
    embedder: Embedder
    ranker: Ranker
    points: Lists  # the labels of each remembered training point


@dataclass(frozen=True)
class Query:
    """A batch of B queries: their bags, what each signal read of them, and which labels they may be given."""

    known: Known
    bags: PackedBags
    readings: Mapping[str, Any]  # Rows of each signal, by its name, where they were read: on the CPU
    exclude: csr_matrix | None = None  # (B, L): labels not to be shown for a query
    allowed: Tensor | None = None  # (L,) bool; None: all labels
    memo: dict[str, Any] = field(default_factory=dict)
    """What proposals and scores share, each computed once per batch, by the name of its signal."""
    neighbours: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Training points (B, n) that a signal found, −1 where fewer, and the logits of their votes."""

    def __len__(self) -> int:
        return len(self.bags)

    @cached_property
    def bag(self) -> Bag:
        """X̂¹, padded."""
        return self.bags.take(torch.arange(len(self.bags), device=self.bags.rows.device))

    @cached_property
    def vector(self) -> Tensor:
        """x̂¹ (B, D)."""
        return self.bag.vector()

    def reading(self, name: str) -> Any:
        """What a signal read of the queries, on the device of their bags."""
        key = f"{name}: reading"
        if key not in self.memo:
            self.memo[key] = self.readings[name].to(self.bags.rows.device)
        return self.memo[key]

    def take(self, rows: Ints) -> Query:
        """Some of the queries."""
        some = torch.from_numpy(rows).to(self.bags.rows.device)
        readings = {name: read.take(rows) for name, read in self.readings.items()}
        exclude = None if self.exclude is None else self.exclude[rows]
        return Query(self.known, self.bags.select(some), readings, exclude, self.allowed)

    def most_voted(self, labels: Tensor, votes: Tensor, k: int) -> Tensor:
        """The k eligible labels (B, ≤ k) with the most votes, both (B, V); −1 where there are fewer."""
        shown = self.eligible(labels)
        order = torch.where(shown, votes, -1.0).argsort(dim=1, descending=True, stable=True)[:, :k]
        return labels.gather(1, order).where(shown.gather(1, order), -1)

    def eligible(self, labels: Tensor) -> Tensor:
        """Which labels (B, K) may be shown, bool; never −1."""
        shown = labels >= 0
        if self.allowed is not None:
            shown &= self.allowed[labels.clamp(min=0)]
        if self.exclude is not None and self.hidden is not None:
            shown &= ~among(self.hidden, _keys(labels, self.exclude.shape[1]))
        return shown

    @cached_property
    def hidden(self) -> Tensor | None:
        """The pairs of `exclude` as ascending keys; None if there are none."""
        if self.exclude is None or not self.exclude.nnz:
            return None
        return pair_keys(self.exclude).to(self.bags.rows.device)


@dataclass(frozen=True)
class Candidates:
    """Label rows (B, K) to be scored for each query, −1 where there are fewer."""

    rows: Tensor
    labels: Labels

    @cached_property
    def bags(self) -> Bag:
        """Ẑ¹ of each, (B, K, n, D)."""
        return self.labels.bags.take(self.rows)


@dataclass(frozen=True)
class Training:
    """What signals learn from once the networks are trained: remembered points, all labels, who has what."""

    points: Query  # the M remembered points
    labels: Query  # all labels, as if they were queries
    relevance: csr_matrix  # (M, L) bool
    exclude: csr_matrix  # (M, L) bool: pairs that say nothing either way
    own_items: bool  # the labels are items themselves


class Signal:
    """One source of evidence; a subclass overrides what it needs. Never changed in place."""

    name: ClassVar[str]  # its key in `hit.parts`, in JSON, on the page and in reports
    says: ClassVar[str]  # what it is, in a few words, for people
    columns: ClassVar[tuple[Column, ...]]
    network: nn.Module | None = None  # weights that it brings, stored with the model's other networks

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Self | None:
        """The signal before training, None if the settings leave it out; `layout` as in `Embedder`."""
        return cls()

    # -- reading -----------------------------------------------------------------------------------------

    def study(self, items: Items) -> Self:
        """Learn what is needed to read, from the training items."""
        return self

    def read(self, items: Items, features: Features, cached: bool, progress: Advance) -> Rows | None:
        """What the signal needs of each item beside its bag, as queries and as labels."""
        return None

    # -- evidence ----------------------------------------------------------------------------------------

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """Eligible labels to add to the candidates: tensors of up to k per query (B, ≤ k), −1 where fewer."""
        return []

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        """The columns of each candidate, (B, K, len(columns)); −inf for one that cannot be compared."""
        raise NotImplementedError

    # -- a signal's life ---------------------------------------------------------------------------------

    def learn(self, training: Training) -> Self:
        """Keep what is needed of training points and labels."""
        return self

    def with_labels(self, labels: Query) -> Self:
        """With these labels behind the others."""
        return self

    def with_points(self, points: Query) -> Self:
        """With these training points behind the others."""
        return self

    def keep(self, labels: Ints, points: Ints) -> Self:
        """Only these labels and remembered points, numbered anew."""
        return self

    def to(self, device: torch.device) -> Self:
        return self

    def point_vectors(self) -> Tensor | None:
        """x̂¹ (M, D) of the remembered points, if it keeps them."""
        return None

    # -- on disk -----------------------------------------------------------------------------------------

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What it knows of labels and points, by name."""
        return iter(())

    def restored(self, tensors: Tensors, known: Known) -> Self:
        """With what `tensors` gave."""
        return self

    def write(self, folder: Path) -> None:
        """Its files, named after it."""
        found = list(self.tensors())
        if found:
            write_tensors(folder / f"{self.name}.safetensors", iter(found))

    def load(self, files: Mapping[str, Path], known: Known) -> Self:
        """With what `write` wrote; `files` has the path of each file of the model folder by name."""
        path = files.get(f"{self.name}.safetensors")
        if path is not None:
            return self.restored(read_tensors(path), known)
        if next(self.tensors(), None) is not None:
            raise ModelError(f"the model folder has no {self.name}.safetensors: {AGAIN}")
        return self


def marked(labels: Tensor, relation: csr_matrix) -> Tensor:
    """Which label rows (B, K) stand in the relation (B, L), bool; −1 never does."""
    return among(pair_keys(relation).to(labels.device), _keys(labels, relation.shape[1])) & (labels >= 0)


def _keys(labels: Tensor, n_labels: int) -> Tensor:
    """row · L + label of labels (B, K); who is −1 must be left out apart."""
    rows = torch.arange(len(labels), device=labels.device)
    return rows[:, None] * n_labels + labels


def grouped(features: Features, groups: Groups) -> dict[str, Any]:
    """What the signals read of each group of items."""
    return {name: rows.grouped(groups.offsets, groups.members) for name, rows in features.readings.items()}
