"""Memory: training points as keys that vote for the labels they had."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from mufin.config import Memory as Settings
from mufin.retrieve.approximate import SAMPLE
from mufin.retrieve.build import Index, build_index
from mufin.retrieve.entries import Entries
from mufin.retrieve.lists import Lists
from mufin.retrieve.postings import most_alike


@dataclass(frozen=True)
class Memory:
    """Keys x̂¹ of remembered points; point i had the labels `labels[offsets[i]:offsets[i + 1]]`."""

    keys: Tensor  # (M, D) unit rows
    offsets: Tensor  # (M + 1,) int64
    labels: Tensor  # (Σ,) int64, label rows
    words: csr_matrix | None = None  # (M, V) unit rows: the same points by their words
    said: Lists | None = None  # further labels, which only the titles of the points say

    @classmethod
    def of(
        cls,
        vectors: Tensor,
        relevance: csr_matrix,
        per_label: int,
        words: csr_matrix | None = None,
        said: csr_matrix | None = None,
    ) -> Memory:
        """Remember points until each label has `per_label` of them, rare labels first: it stays bounded."""
        kept = bounded(relevance if said is None else csr_matrix(relevance + said), per_label)
        device = vectors.device
        keys = vectors[torch.from_numpy(kept).to(device)]
        listed = Lists.of(relevance[kept]).to(device)
        more = None if said is None else Lists.of(said[kept]).to(device)
        return cls(keys, listed.offsets, listed.labels, None if words is None else words[kept], more)

    @classmethod
    def empty(cls, dim: int, device: torch.device) -> Memory:
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        return cls(torch.zeros(0, dim, device=device), zeros, zeros[:0])

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device) -> Memory:
        """Its words stay on the CPU."""
        listed, said = self.listed.to(device), None if self.said is None else self.said.to(device)
        moved = Memory(self.keys.to(device), listed.offsets, listed.labels, self.words, said)
        return moved.with_postings(self.__dict__.get("by_word"))

    @property
    def listed(self) -> Lists:
        """The labels that the points had."""
        return Lists(self.offsets, self.labels)

    @property
    def entries(self) -> Entries:
        """Each key is its own label here: what is found are points."""
        return Entries(self.keys, torch.arange(len(self), device=self.keys.device), len(self))

    @cached_property
    def index(self) -> Index:
        """Built when it is first asked, unless it was read from a file."""
        return build_index(self.entries, queries=self.sample())

    @property
    def built(self) -> Index | None:
        """The index, if there is one already."""
        return self.__dict__.get("index")

    def with_index(self, index: Index) -> Memory:
        """The same memory with an index over `entries` that was built before."""
        copy = replace(self)
        copy.__dict__.update(self.__dict__, index=index)  # where cached properties are kept
        return copy

    def sample(self) -> Tensor | None:
        """Some keys, for indexes to tune themselves to."""
        step = max(1, len(self) // SAMPLE)
        return self.keys[::step][:SAMPLE] if len(self) else None

    def ballots(
        self, queries: Tensor, words: csr_matrix | None, settings: Settings
    ) -> list[tuple[Tensor, Tensor]]:
        """Labels and votes of queries (B, D) with words (B, V), in four ways, empty where there are none.

        By the nearest points, and by points with like words; then both again for what only titles say.
        """
        near = self._near(queries, settings.neighbours, settings.temperature)
        like = self._like(words, len(queries), settings.neighbours, settings.word_temperature)
        said = self.said or Lists.none(len(self), queries.device)
        return [lists.tally(*found) for lists in (self.listed, said) for found in (near, like)]

    def votes(self, queries: Tensor, neighbours: int, temperature: float) -> tuple[Tensor, Tensor]:
        """m_l = Σ over the nearest points i with y_il = 1 of softmax_i(⟨x̂, key_i⟩ / τ).

        Gives the voted label rows (B, V), ascending, −1 where there are fewer, and their votes.
        """
        return self.listed.tally(*self._near(queries, neighbours, temperature))

    def votes_by_words(
        self, queries: csr_matrix, neighbours: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """The same with the points whose words are most like those of queries (B, V)."""
        return self.listed.tally(*self._like(queries, queries.shape[0], neighbours, temperature))

    def _near(self, queries: Tensor, neighbours: int, temperature: float) -> tuple[Tensor, Tensor]:
        """The nearest points (B, n), −1 where fewer, and the logits of their votes."""
        if not len(self):
            return _nobody(len(queries), queries.device)
        found = self.index.search(queries, min(neighbours, len(self)))
        return found.labels, found.similarity / temperature

    def _like(
        self, queries: csr_matrix | None, n: int, neighbours: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """The same of the points with like words, for n queries."""
        if queries is None or self.words is None or not len(self):
            return _nobody(n, self.keys.device)
        found, like = most_alike(queries, self.words, self.by_word, min(neighbours, len(self)))
        points, logits = (torch.from_numpy(a).to(self.keys.device) for a in (found, like / temperature))
        return points, logits

    @cached_property
    def by_word(self) -> csr_matrix:
        """(V, M): which points have a word; made when it is first asked, unless it was read from a file."""
        return csr_matrix(self.words.T) if self.words is not None else csr_matrix((0, len(self)))

    def with_postings(self, by_word: csr_matrix | None) -> Memory:
        """The same memory with `by_word` made before, if it was."""
        if by_word is None:
            return self
        copy = replace(self)
        copy.__dict__.update(self.__dict__, by_word=by_word)
        return copy

    def with_points(
        self, vectors: Tensor, offsets: Tensor, labels: Tensor, words: csr_matrix | None = None
    ) -> Memory:
        """These points remembered as well."""
        if self.words is not None and words is not None:
            words = csr_matrix(vstack([self.words, words]))
        listed = self.listed.followed_by(Lists(offsets, labels))
        none = Lists.none(len(vectors), offsets.device)
        said = None if self.said is None else self.said.followed_by(none)
        return Memory(torch.cat([self.keys, vectors]), listed.offsets, listed.labels, words, said)

    def renumbered(self, new_row: Tensor) -> Memory:
        """Label rows replaced by new_row (L,), those of −1 forgotten, and points that have no other."""
        listed, said = self.listed.renumbered(new_row), self.said and self.said.renumbered(new_row)
        useful = listed.offsets.diff() > 0
        if said is not None:
            useful |= said.offsets.diff() > 0
        words = None if self.words is None else self.words[useful.cpu().numpy()]
        listed, said = listed.only(useful), said and said.only(useful)
        return Memory(self.keys[useful], listed.offsets, listed.labels, words, said)


def bounded(relevance: csr_matrix, per_label: int) -> np.ndarray:
    """Points, ascending, such that every label keeps min(its frequency, per_label) of them or a few more."""
    by_label = csr_matrix(relevance.T)
    frequency = np.diff(by_label.indptr)
    if not len(frequency) or frequency.max() <= per_label:
        return np.flatnonzero(np.diff(relevance.indptr)).astype(np.int64)
    taken = np.zeros(relevance.shape[0], bool)
    for label in np.argsort(frequency, kind="stable"):
        points = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
        missing = per_label - int(taken[points].sum())
        if missing > 0:
            rest = points[~taken[points]]
            n = min(missing, len(rest))
            taken[rest[np.arange(n) * len(rest) // max(n, 1)]] = True  # spread evenly
    return np.flatnonzero(taken).astype(np.int64)


def _nobody(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    none = torch.zeros(n, 0, device=device)
    return none.long(), none
