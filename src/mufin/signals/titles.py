"""Titles: labels named word for word in an item's title or in the titles of its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.config import Config
from mufin.data.items import Items
from mufin.data.ragged import Ints, spans
from mufin.encode.checkpoints import Layout
from mufin.encode.features import Features
from mufin.encode.rows import SparseRows, products
from mufin.encode.words import TITLE_WIDTH, title_words
from mufin.files.tensors import Tensors, sparse_tensors
from mufin.progress import Task
from mufin.retrieve.lists import Lists
from mufin.retrieve.shortlist import among
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training
from mufin.signals.memory import count_votes, log_votes, votes_for

MIN_EXPECTED = 10.0  # listed pairs expected by chance; with fewer, their absence is no evidence
MAX_LISTED_SHARE = 0.5  # of the expected pairs; if fewer are listed, the catalogue omits title labels
PAIRS_PER_CHUNK = 1 << 22
VOTING_SIGNALS = ("memory", "words")  # the signals whose neighbours vote


@dataclass(frozen=True)
class Titles(Signal):
    """Whether the title contains all words of a label, and votes of neighbours for their *title labels*.

    A catalogue may omit labels that are already in the title: an icon named "arrow left" does not list
    "arrow". Remembered points then vote for such labels too, counted separately from their listed labels.
    """

    name = "titles"
    description = "the label's words in the title, or in titles of training examples"
    columns = (
        Column("in title"),
        Column("log titles", scale=1.0, by_rarity=False), Column("titles", by_rarity=False),
        Column("log titles by words", scale=1.0, by_rarity=False), Column("titles by words", by_rarity=False),
    )  # fmt: skip

    vote: bool  # whether to look for title labels
    labels: SparseRows  # (L, 2²⁰), the set of words of each label
    title_labels: Lists  # of the M remembered points; all empty if the catalogue lists its title labels

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Titles | None:
        if not config.text.words:
            return None
        empty = SparseRows.none(TITLE_WIDTH, "set")
        vote = bool(config.memory.title_labels and config.memory.neighbours)
        return cls(vote, empty, Lists.none(0, torch.device("cpu")))

    def read(self, items: Items, features: Features, cached: bool, task: Task) -> SparseRows:
        return SparseRows.of(title_words(items), "set")

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """Propose the title labels with the most votes."""
        return [query.most_voted(*voted, k) for voted in self._votes(query) if voted[0].shape[1]]

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        rows = candidates.rows
        columns = [contains_label(query.reading(self.name), self.labels, rows).float()]
        for voted in self._votes(query):
            votes = votes_for(candidates, *voted)
            columns += [log_votes(votes), votes]
        return torch.stack(columns, dim=-1)

    def _votes(self, query: Query) -> list[tuple[Tensor, Tensor]]:
        """Return title labels and votes per voting signal, using the neighbours it has already found."""
        none = torch.zeros(len(query), 0, device=query.vector.device)
        return [
            count_votes(query, f"{self.name} by {signal}", signal, self.title_labels)
            if signal in query.neighbours and len(self.title_labels.labels)
            else (none.long(), none)
            for signal in VOTING_SIGNALS
        ]

    def learn(self, training: Training) -> Titles:
        labels = training.labels.readings[self.name]
        found = None
        if self.vote and not training.own_items:
            pairs = title_label_pairs(training.points.reading(self.name), training.labels.reading(self.name))
            found = unlisted_title_labels(pairs, training.relevance, training.exclude)
        lists = Lists.none(len(training.points), torch.device("cpu")) if found is None else Lists.of(found)
        return replace(self, labels=labels, title_labels=lists).to(training.points.bags.rows.device)

    def with_labels(self, labels: Query) -> Titles:
        return replace(self, labels=self.labels.concat(labels.readings[self.name]))

    def with_points(self, points: Query) -> Titles:
        none = Lists.none(len(points), self.title_labels.offsets.device)
        return replace(self, title_labels=self.title_labels.followed_by(none))

    def keep(self, labels: Ints, points: Ints) -> Titles:
        kept = self.title_labels.kept(labels, len(self.labels), points)
        return replace(self, labels=self.labels.take(labels), title_labels=kept)

    def to(self, device: torch.device) -> Titles:
        return replace(self, labels=self.labels.to(device), title_labels=self.title_labels.to(device))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from sparse_tensors("labels", self.labels.csr)
        yield from self.title_labels.tensors("title_labels.")

    def restored(self, tensors: Tensors, known: Known) -> Titles:
        n_labels = len(known.labels.alive)
        labels = tensors.get_sparse("labels", (n_labels, TITLE_WIDTH))
        lists = Lists.read(tensors, "title_labels.", len(known.points), n_labels)
        return replace(self, labels=SparseRows.of(labels, "set"), title_labels=lists)


def contains_label(titles: SparseRows, labels: SparseRows, candidates: Tensor) -> Tensor:
    """Return (B, K) bool: whether titles (B, V) contain all words of candidates (B, K) of labels (L, V)."""
    _, words = labels.extent(candidates.clamp(min=0))  # (B, K)
    return (products(titles, labels, candidates) >= words) & (words > 0) & (candidates >= 0)


def unlisted_title_labels(pairs: csr_matrix, relevance: csr_matrix, exclude: csr_matrix) -> csr_matrix | None:
    """Return the pairs (M, L) of `title_label_pairs` that are not listed; None if they usually are.

    If titles and labels were independent, Σ frequency / M of the pairs in which a title names a label would
    be listed by chance. If far fewer are, the catalogue omits title labels on purpose. Excluded pairs are
    not counted.
    """
    pairs = csr_matrix(pairs > exclude)
    frequency = np.bincount(relevance.indices, minlength=pairs.shape[1])
    expected = float(frequency[pairs.indices].sum()) / max(1, pairs.shape[0])
    listed = relevance.multiply(pairs).nnz
    if expected < MIN_EXPECTED or listed > MAX_LISTED_SHARE * expected:
        return None
    return csr_matrix(pairs > relevance)


def title_label_pairs(titles: SparseRows, labels: SparseRows) -> csr_matrix:
    """Return (M, L) bool: whether titles (M, V) contain all words of labels (L, V), at least one.

    Each label meets the titles with its rarest word; those without its second rarest word are dropped, and
    so on.
    """
    keys, with_word = titles.keys, titles.T  # (Σ,) ascending; (V, M)
    title_count = with_word.offsets.diff()  # (V,)
    first, sizes = labels.offsets[:-1], labels.offsets.diff()
    words = labels.columns[(labels.row * (len(titles) + 1) + title_count[labels.columns]).argsort()].long()
    found = [torch.zeros(2, 0, dtype=torch.int64, device=keys.device)]
    named = sizes.nonzero()[:, 0]
    matches = title_count[words[first[named]]]
    chunk = matches.cumsum(0) // PAIRS_PER_CHUNK
    for part in named.split(chunk.unique_consecutive(return_counts=True)[1].tolist()):
        rarest = words[first[part]]
        point = with_word.columns[spans(with_word.offsets[rarest], title_count[rarest])].long()
        label = part.repeat_interleave(title_count[rarest])
        for n in range(1, int(sizes[part].max())):
            longer = sizes[label] > n
            word = words[(first[label] + n).clamp(max=len(words) - 1)]
            kept = ~longer | among(keys, point * titles.width + word)
            point, label = point[kept], label[kept]
        found.append(torch.stack([point, label]))
    rows, columns = torch.cat(found, dim=1).cpu().numpy()
    return csr_matrix((np.ones(len(rows), bool), (rows, columns)), (len(titles), len(labels)))
