"""Memory: training points as keys that vote for the labels they had."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from torch import Tensor
from torch.nn import functional as F

from mufin.config import Memory as Settings
from mufin.retrieve.approximate import SAMPLE
from mufin.retrieve.build import Index, build_index
from mufin.retrieve.entries import Entries
from mufin.retrieve.postings import most_alike


@dataclass(frozen=True)
class Memory:
    """Keys x̂¹ of remembered points; point i had the labels `labels[offsets[i]:offsets[i + 1]]`."""

    keys: Tensor  # (M, D) unit rows
    offsets: Tensor  # (M + 1,) int64
    labels: Tensor  # (Σ,) int64, label rows
    words: csr_matrix | None = None  # (M, V) unit rows: the same points by their words

    @classmethod
    def of(
        cls, vectors: Tensor, relevance: csr_matrix, per_label: int, words: csr_matrix | None = None
    ) -> Memory:
        """Remember points until each label has `per_label` of them, rare labels first: it stays bounded."""
        kept = bounded(relevance, per_label)
        rows = csr_matrix(relevance[kept])
        offsets, labels = (torch.from_numpy(a.astype(np.int64)) for a in (rows.indptr, rows.indices))
        device = vectors.device
        keys = vectors[torch.from_numpy(kept).to(device)]
        return cls(keys, offsets.to(device), labels.to(device), None if words is None else words[kept])

    @classmethod
    def empty(cls, dim: int, device: torch.device) -> Memory:
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        return cls(torch.zeros(0, dim, device=device), zeros, zeros[:0])

    def __len__(self) -> int:
        return len(self.keys)

    def to(self, device: torch.device) -> Memory:
        """Its words stay on the CPU."""
        moved = Memory(self.keys.to(device), self.offsets.to(device), self.labels.to(device), self.words)
        return moved.with_postings(self.__dict__.get("by_word"))

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
        """What `votes` gives for queries (B, D), and `votes_by_words` for their words (B, V), if known."""
        found = [self.votes(queries, settings.neighbours, settings.temperature)]
        if words is not None and self.words is not None:
            found.append(self.votes_by_words(words, settings.neighbours, settings.word_temperature))
        return found

    def votes(self, queries: Tensor, neighbours: int, temperature: float) -> tuple[Tensor, Tensor]:
        """m_l = Σ over the nearest points i with y_il = 1 of softmax_i(⟨x̂, key_i⟩ / τ).

        Gives the voted label rows (B, V), ascending, −1 where there are fewer, and their votes.
        """
        if not len(self):
            none = torch.zeros(len(queries), 0, device=queries.device)
            return none.long(), none
        found = self.index.search(queries, min(neighbours, len(self)))
        return self._tally(found.labels, found.similarity / temperature)

    def votes_by_words(
        self, queries: csr_matrix, neighbours: int, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """The same with the points whose words are most like those of queries (B, V)."""
        if self.words is None or not len(self):
            none = torch.zeros(queries.shape[0], 0, device=self.keys.device)
            return none.long(), none
        found, like = most_alike(queries, self.words, self.by_word, min(neighbours, len(self)))
        points, logits = (torch.from_numpy(a).to(self.keys.device) for a in (found, like / temperature))
        return self._tally(points, logits)

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

    def _tally(self, found: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Points found (B, n), −1 where fewer, cast softmax(logits) for each of their labels."""
        if not len(self) or not found.numel():
            none = torch.zeros(len(found), 0, device=self.keys.device)
            return none.long(), none
        floor = torch.finfo(logits.dtype).min  # over −inf alone, where nobody was found, it would be NaN
        share = logits.clamp(min=floor).softmax(dim=1).masked_fill(found < 0, 0.0).flatten()  # (B n,)
        points = found.clamp(min=0).flatten()
        first = self.offsets[points]
        counts = (self.offsets[points + 1] - first).masked_fill(found.flatten() < 0, 0)
        ends = counts.cumsum(0)
        each = torch.arange(int(ends[-1]), device=ends.device)
        vote = torch.searchsorted(ends, each, right=True)  # whose label it is
        place = each + (first - ends + counts)[vote]
        return _summed(vote // found.shape[1], self.labels[place], share[vote], len(found))

    def with_points(
        self, vectors: Tensor, offsets: Tensor, labels: Tensor, words: csr_matrix | None = None
    ) -> Memory:
        """These points remembered as well."""
        if self.words is not None and words is not None:
            words = csr_matrix(vstack([self.words, words]))
        return Memory(
            torch.cat([self.keys, vectors]),
            torch.cat([self.offsets, offsets[1:] + self.offsets[-1]]),
            torch.cat([self.labels, labels]),
            words,
        )

    def renumbered(self, new_row: Tensor) -> Memory:
        """Label rows replaced by new_row (L,), those of −1 forgotten, and points that have no other."""
        labels = new_row[self.labels]
        offsets = F.pad((labels >= 0).cumsum(0), (1, 0))[self.offsets]
        useful = offsets.diff() > 0
        kept = torch.cat([useful.new_ones(1), useful])
        words = None if self.words is None else self.words[useful.cpu().numpy()]
        return Memory(self.keys[useful], offsets[kept], labels[labels >= 0], words)


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


def _summed(query: Tensor, label: Tensor, weight: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Add up the weights of each (query, label) and lay them out in rows, labels ascending."""
    width = int(label.max()) + 1 if len(label) else 1
    pair, which = torch.unique(query * width + label, return_inverse=True)
    total = torch.zeros(len(pair), device=weight.device).index_add_(0, which, weight)
    owner = pair // width
    counts = torch.bincount(owner, minlength=n)
    slot = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner]
    longest = int(counts.max()) if n else 0
    labels = torch.full((n, longest), -1, dtype=torch.int64, device=owner.device)
    votes = torch.zeros(n, longest, device=owner.device)
    labels[owner, slot], votes[owner, slot] = pair % width, total
    return labels, votes
