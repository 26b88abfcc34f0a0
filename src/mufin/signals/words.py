"""Words: votes of training points with similar words, and the words shared with a label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.encode.checkpoints import Layout
from mufin.encode.features import Features
from mufin.encode.rows import SparseRows, products
from mufin.encode.words import WIDTH, inverse_frequency, tfidf
from mufin.files.tensors import Tensors, sparse_tensors
from mufin.progress import Task
from mufin.retrieve.postings import most_alike
from mufin.settings import Memory as Settings
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training, nearest_vote
from mufin.signals.memory import count_votes, log_votes, votes_for

SAME_WORDS = 0.9  # an overlap above this means that item and label have practically the same words


@dataclass(frozen=True)
class Words(Signal):
    """n_l, the votes of points with similar words; o = ⟨v, v_l⟩, with v the TF-IDF vector of all texts."""

    name = "words"
    description = "words shared with the label and with training examples"
    columns = (
        Column("log words", scale=1.0, pairs=True), Column("words"),
        Column("overlap"), Column("same words"),
    )  # fmt: skip
    clues = ("nearest words",)

    settings: Settings
    idf: Tensor  # (2¹⁸,)
    labels: SparseRows  # (L, 2¹⁸)
    points: SparseRows  # (M, 2¹⁸), empty without voting; its transpose is stored to speed up the first query

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Words | None:
        if not config.text.words:
            return None
        empty = SparseRows.none(WIDTH)
        return cls(config.memory, torch.ones(WIDTH), empty, empty)

    def study(self, items: Items) -> Words:
        """Compute the inverse document frequency of each word."""
        return replace(self, idf=torch.from_numpy(inverse_frequency(items)))

    def read(self, items: Items, features: Features, cached: bool, task: Task) -> SparseRows:
        return SparseRows.of(tfidf(items, self.idf.numpy()))

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """Propose the labels with the most votes of points with similar words."""
        return [query.most_voted(*self.votes(query), k)]

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        votes = votes_for(candidates, *self.votes(query))
        overlap = products(query.reading(self.name), self.labels, candidates.rows)
        return torch.stack([log_votes(votes), votes, overlap, (overlap > SAME_WORDS).float()], dim=-1)

    def votes(self, query: Query) -> tuple[Tensor, Tensor]:
        """Return the voted label rows (B, V), ascending, padded with −1, and their votes."""
        if self.name not in query.neighbours:
            query.neighbours[self.name] = self._neighbours(query)
        return count_votes(query, self.name, self.name, query.known.points)

    def familiar(self, query: Query) -> Tensor:
        self.votes(query)
        given = query.reading(self.name).offsets.diff() > 0
        return nearest_vote(query, self.name).masked_fill(~given[:, None], torch.nan)

    def _neighbours(self, query: Query) -> tuple[Tensor, Tensor]:
        device, n = query.vector.device, min(self.settings.neighbours, len(self.points))
        if not n:
            none = torch.zeros(len(query), 0, device=device)
            return none.long(), none
        points, similarity = most_alike(query.reading(self.name), self.points, n)
        return points, similarity / self.settings.word_temperature

    def learn(self, training: Training) -> Words:
        device = training.points.bags.rows.device
        points = training.points.readings[self.name] if self.settings.neighbours else self.points
        labels = training.labels.readings[self.name]
        return Words(self.settings, self.idf, labels.to(device), points.to(device))

    def with_labels(self, labels: Query) -> Words:
        return replace(self, labels=self.labels.concat(labels.readings[self.name]))

    def with_points(self, points: Query) -> Words:
        return replace(self, points=self.points.concat(points.readings[self.name]))

    def keep(self, labels: Ints, points: Ints) -> Words:
        kept = self.points.take(points) if len(self.points) else self.points
        return replace(self, labels=self.labels.take(labels), points=kept)

    def to(self, device: torch.device) -> Words:
        return replace(self, labels=self.labels.to(device), points=self.points.to(device))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "idf", self.idf
        yield from sparse_tensors("labels", self.labels.csr)
        yield from sparse_tensors("points", self.points.csr)
        yield from sparse_tensors("by_word", self.points.T.csr)  # saves time on the first query

    def restored(self, tensors: Tensors, known: Known) -> Words:
        n_points = len(known.points) if self.settings.neighbours else 0
        labels = tensors.get_sparse("labels", (len(known.labels.alive), WIDTH))
        points = tensors.get_sparse("points", (n_points, WIDTH))
        idf = tensors.get("idf", (WIDTH,), (torch.float32,))
        by_word = tensors.get_sparse("by_word", (WIDTH, n_points))
        remembered = SparseRows.of(points).with_columns(SparseRows.of(by_word))
        return Words(self.settings, idf, SparseRows.of(labels), remembered)
