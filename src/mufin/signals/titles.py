"""Titles: labels that an item's title names word for word, and votes for those neighbours' titles name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.config import Config
from mufin.data.items import Items
from mufin.data.ragged import Ints, ranges
from mufin.encode.checkpoints import Layout
from mufin.encode.features import Advance, Features
from mufin.encode.rows import SparseRows, products
from mufin.encode.words import TITLES, title_words
from mufin.files.tensors import Tensors, sparse_tensors
from mufin.retrieve.lists import Lists
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training
from mufin.signals.memory import given, strength, tallied

ENOUGH = 10.0  # labels that chance would have listed; of fewer, that none is there says nothing
LEFT_OUT = 0.5  # of what chance would have listed: with fewer there is a rule behind it
PAIRS = 1 << 22  # looked at at a time
FINDERS = ("memory", "words")  # the signals whose neighbours vote


@dataclass(frozen=True)
class Titles(Signal):
    """Whether a title has all words of a label; and votes of neighbours for their *title labels*.

    A catalogue may leave out of its lists what titles say anyway: an icon named "arrow left" does not list
    "arrow". Remembered points then vote for such labels too, counted apart from those that they list.
    """

    name = "titles"
    says = "the label's words in the title, or in titles of training examples"
    columns = (
        Column("in title"),
        Column("log titles", scale=1.0, by_rarity=False), Column("titles", by_rarity=False),
        Column("log titles by words", scale=1.0, by_rarity=False), Column("titles by words", by_rarity=False),
    )  # fmt: skip

    vote: bool  # whether title labels are looked for at all
    labels: SparseRows  # (L, 2²⁰), a set of words each
    title_labels: Lists  # of the M remembered points; of none of them where lists leave nothing out

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Titles | None:
        if not config.text.words:
            return None
        nothing = SparseRows.none(TITLES, "set")
        vote = bool(config.memory.title_labels and config.memory.neighbours)
        return cls(vote, nothing, Lists.none(0, torch.device("cpu")))

    def read(self, items: Items, features: Features, cached: bool, progress: Advance) -> SparseRows:
        return SparseRows.of(title_words(items), "set")

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """The title labels with the most votes."""
        return [query.most_voted(*voted, k) for voted in self._votes(query) if voted[0].shape[1]]

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        rows = candidates.rows
        columns = [named(query.reading(self.name), self.labels, rows).float()]
        for voted in self._votes(query):
            votes = given(candidates, *voted)
            columns += [strength(votes), votes]
        return torch.stack(columns, dim=-1)

    def _votes(self, query: Query) -> list[tuple[Tensor, Tensor]]:
        """Title labels and their votes by each finder's neighbours, which signals before this one found."""
        none = torch.zeros(len(query), 0, device=query.vector.device)
        return [
            tallied(query, f"{self.name} by {finder}", finder, self.title_labels)
            if finder in query.neighbours and len(self.title_labels.labels)
            else (none.long(), none)
            for finder in FINDERS
        ]

    def learn(self, training: Training) -> Titles:
        labels = training.labels.readings[self.name]
        found = None
        if self.vote and not training.own_items:
            points = training.points.readings[self.name]
            found = left_out(points.csr, labels.csr, training.relevance, training.exclude)
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
        labels = tensors.get_sparse("labels", (n_labels, TITLES))
        lists = Lists.read(tensors, "title_labels.", len(known.points), n_labels)
        return replace(self, labels=SparseRows.of(labels, "set"), title_labels=lists)


def named(titles: SparseRows, labels: SparseRows, candidates: Tensor) -> Tensor:
    """(B, K) bool: whether titles (B, V) have all words of their candidates (B, K), rows of labels (L, V)."""
    _, words = labels.extent(candidates.clamp(min=0))  # (B, K)
    return (products(titles, labels, candidates) >= words) & (words > 0) & (candidates >= 0)


def left_out(
    titles: csr_matrix, labels: csr_matrix, relevance: csr_matrix, exclude: csr_matrix
) -> csr_matrix | None:
    """(M, L) bool: labels (L, V) that titles (M, V) name and lists lack; None unless lists leave them out.

    Titles and labels that have nothing to do with one another would meet by chance, Σ frequency / M over all
    pairs in which the one names the other. Only if far fewer of these pairs are listed, they are left out on
    purpose. Excluded pairs say nothing either way.
    """
    pairs = csr_matrix(named_pairs(titles, labels) > exclude)
    frequency = np.bincount(relevance.indices, minlength=labels.shape[0])
    expected = float(frequency[pairs.indices].sum()) / max(1, titles.shape[0])
    listed = relevance.multiply(pairs).nnz
    if expected < ENOUGH or listed > LEFT_OUT * expected:
        return None
    return csr_matrix(pairs > relevance)


def named_pairs(titles: csr_matrix, labels: csr_matrix) -> csr_matrix:
    """(M, L) bool: which titles (M, V) have all words of which labels (L, V); a label without words none.

    A label can only be named where its rarest word is, so no other pair is looked at.
    """
    with_word = csr_matrix(titles.T)  # (V, M)
    common = np.diff(with_word.indptr)
    words = np.diff(labels.indptr)
    worded = np.flatnonzero(words)
    order = np.lexsort((common[labels.indices], np.repeat(np.arange(len(words)), words)))
    rarest = labels.indices[order[labels.indptr[worded]]]  # (len(worded),)
    found = [np.zeros((2, 0), np.int64)]
    for some in np.array_split(np.arange(len(worded)), 1 + int(common[rarest].sum()) // PAIRS):
        word, label = rarest[some], worded[some]
        point = with_word.indices[ranges(with_word.indptr[word].astype(np.int64), common[word])]
        label = np.repeat(label, common[word])
        shared = np.asarray(titles[point].sign().multiply(labels[label]).sum(axis=1)).ravel()
        all_of_it = shared >= words[label]
        found.append(np.stack([point[all_of_it], label[all_of_it]]))
    rows, columns = np.concatenate(found, axis=1)
    return csr_matrix((np.ones(len(rows), bool), (rows, columns)), (titles.shape[0], labels.shape[0]))
