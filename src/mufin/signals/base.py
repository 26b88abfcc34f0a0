"""Define the Signal interface and the data that all signals share."""

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
from mufin.encode.features import Features, Groups
from mufin.encode.rows import Rows
from mufin.errors import ModelError
from mufin.files.folder import RECOVERY_HINT
from mufin.files.tensors import Tensors, read_tensors, write_tensors
from mufin.progress import Task
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
    """One number per (query, label) pair, passed by a signal to the mixture."""

    name: str  # the weight is stored under this name
    start: float = 0.0  # initial value of a learnt weight
    scale: float = 5.0  # change in weight that costs one unit of the ridge penalty
    by_rarity: bool = True  # also multiplied by the label's rarity
    pairs: bool = False  # also multiplied with every other such column, to reward agreement


@dataclass(frozen=True)
class Known:
    """The parts of a trained model that every signal may use."""

    labels: Labels
    index: Index  # over the labels
    entries: tuple[Kind, ...]  # kinds of index entries per label
    embedder: Embedder
    ranker: Ranker
    points: Lists  # labels of each remembered training point


@dataclass(frozen=True)
class Query:
    """A batch of B queries: their bags, the readings of each signal, and the labels they may receive."""

    known: Known
    bags: PackedBags
    readings: Mapping[str, Any]  # Rows on the CPU, by signal name
    exclude: csr_matrix | None = None  # (B, L): labels not to return for a query
    allowed: Tensor | None = None  # (L,) bool; None: all labels
    memo: dict[str, Any] = field(default_factory=dict)
    """Results shared by `propose` and `score`, computed once per batch; keys start with the signal name."""
    neighbours: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By signal name: the nearest training points (B, n), padded with −1, and the logits of their votes."""

    def __len__(self) -> int:
        return len(self.bags)

    @cached_property
    def bag(self) -> Bag:
        """X̂¹, the padded bags of all queries."""
        return self.bags.take(torch.arange(len(self.bags), device=self.bags.rows.device))

    @cached_property
    def vector(self) -> Tensor:
        """x̂¹ (B, D)."""
        return self.bag.vector()

    def reading(self, name: str) -> Any:
        """Return a signal's reading of the queries, on the device of the bags."""
        key = f"{name}: reading"
        if key not in self.memo:
            self.memo[key] = self.readings[name].to(self.bags.rows.device)
        return self.memo[key]

    def take(self, rows: Ints) -> Query:
        """Select these queries."""
        selected = torch.from_numpy(rows).to(self.bags.rows.device)
        readings = {name: reading.take(rows) for name, reading in self.readings.items()}
        exclude = None if self.exclude is None else self.exclude[rows]
        return Query(self.known, self.bags.select(selected), readings, exclude, self.allowed)

    def most_voted(self, labels: Tensor, votes: Tensor, k: int) -> Tensor:
        """Return the k eligible labels (B, ≤ k) with the most votes, padded with −1; inputs are (B, V)."""
        eligible = self.eligible(labels)
        order = torch.where(eligible, votes, -1.0).argsort(dim=1, descending=True, stable=True)[:, :k]
        return labels.gather(1, order).where(eligible.gather(1, order), -1)

    def eligible(self, labels: Tensor) -> Tensor:
        """Return a mask of the labels (B, K) that may be returned; False for −1."""
        eligible = labels >= 0
        if self.allowed is not None:
            eligible &= self.allowed[labels.clamp(min=0)]
        if self.exclude is not None and self.hidden is not None:
            eligible &= ~among(self.hidden, _keys(labels, self.exclude.shape[1]))
        return eligible

    @cached_property
    def hidden(self) -> Tensor | None:
        """The pairs in `exclude` as sorted keys, or None if there are none."""
        if self.exclude is None or not self.exclude.nnz:
            return None
        return pair_keys(self.exclude).to(self.bags.rows.device)


@dataclass(frozen=True)
class Candidates:
    """Label rows (B, K) to score for each query, padded with −1."""

    rows: Tensor
    labels: Labels
    first: Tensor | None = None  # the proposal that the rows begin with

    @cached_property
    def bags(self) -> Bag:
        """Ẑ¹ of each candidate, (B, K, n, D)."""
        return self.labels.bags.take(self.rows)


@dataclass(frozen=True)
class Training:
    """Data for `Signal.learn`, once the networks are trained: remembered points, labels, relevance."""

    points: Query  # the M remembered points
    labels: Query  # all labels, in the form of queries
    relevance: csr_matrix  # (M, L) bool
    exclude: csr_matrix  # (M, L) bool: pairs of unknown relevance, neither positive nor negative
    own_items: bool  # the labels are catalogue items


class Signal:
    """One source of evidence about (query, label) pairs. Immutable; subclasses override what they need."""

    name: ClassVar[str]  # key in `hit.parts`, in JSON, on the page and in reports
    description: ClassVar[str]  # a few words for users
    columns: ClassVar[tuple[Column, ...]]
    clues: ClassVar[tuple[str, ...]] = ()  # names of what `familiar` returns
    network: nn.Module | None = None  # extra weights, stored with the model's other networks

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Self | None:
        """Create the untrained signal, or None if the settings disable it; `layout` as in `Embedder`."""
        return cls()

    # -- reading -----------------------------------------------------------------------------------------

    def study(self, items: Items) -> Self:
        """Learn from the training items what `read` needs."""
        return self

    def read(self, items: Items, features: Features, cached: bool, task: Task) -> Rows | None:
        """Extract what the signal needs from each item besides its bag, for queries and labels alike."""
        return None

    # -- evidence ----------------------------------------------------------------------------------------

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """Propose eligible labels as candidates: tensors (B, ≤ k) of up to k per query, padded with −1."""
        return []

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        """Return the columns of each candidate, (B, K, len(columns)); −inf where it cannot be compared."""
        raise NotImplementedError

    def familiar(self, query: Query) -> Tensor:
        """Return how like the training data each query is, (B, len(clues)): larger is more alike.

        NaN where a query has nothing to compare. Enters the probability, not the score.
        """
        return torch.zeros(len(query), 0, device=query.bags.rows.device)

    # -- learning and updates ----------------------------------------------------------------------------

    def learn(self, training: Training) -> Self:
        """Return a copy that stores what it needs of the training points and labels."""
        return self

    def with_labels(self, labels: Query) -> Self:
        """Return a copy with these labels appended."""
        return self

    def with_points(self, points: Query) -> Self:
        """Return a copy with these training points appended."""
        return self

    def keep(self, labels: Ints, points: Ints) -> Self:
        """Return a copy with only these labels and remembered points, renumbered."""
        return self

    def to(self, device: torch.device) -> Self:
        return self

    def point_vectors(self) -> Tensor | None:
        """Return x̂¹ (M, D) of the remembered points, or None if the signal does not store them."""
        return None

    # -- on disk -----------------------------------------------------------------------------------------

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the stored tensors of labels and points, by name."""
        return iter(())

    def restored(self, tensors: Tensors, known: Known) -> Self:
        """Return a copy with the tensors that `tensors` yielded."""
        return self

    def write(self, folder: Path) -> None:
        """Write the signal's files, which start with its name."""
        stored = list(self.tensors())
        if stored:
            write_tensors(folder / f"{self.name}.safetensors", iter(stored))

    def load(self, files: Mapping[str, Path], known: Known) -> Self:
        """Return a copy with what `write` wrote; `files` maps names in the model folder to paths."""
        path = files.get(f"{self.name}.safetensors")
        if path is not None:
            return self.restored(read_tensors(path), known)
        if next(self.tensors(), None) is not None:
            raise ModelError(f"the model folder has no {self.name}.safetensors: {RECOVERY_HINT}")
        return self


def marked(labels: Tensor, relation: csr_matrix) -> Tensor:
    """Return a mask of the label rows (B, K) that are in the relation (B, L); False for −1."""
    return among(pair_keys(relation).to(labels.device), _keys(labels, relation.shape[1])) & (labels >= 0)


def _keys(labels: Tensor, n_labels: int) -> Tensor:
    """Return keys row · L + label for labels (B, K); the caller must mask −1."""
    rows = torch.arange(len(labels), device=labels.device)
    return rows[:, None] * n_labels + labels


def nearest_vote(query: Query, name: str) -> Tensor:
    """Return the largest logit of a signal's neighbours of each query, (B, 1); 0 without a neighbour."""
    logits = query.neighbours[name][1]
    if not logits.shape[1]:
        return torch.zeros(len(query), 1, device=logits.device)
    return logits.amax(1, keepdim=True).clamp(min=0)


def grouped(features: Features, groups: Groups) -> dict[str, Any]:
    """Combine the signals' readings of items into readings per group."""
    return {name: rows.grouped(groups.offsets, groups.members) for name, rows in features.readings.items()}
