"""Memory: the training points nearest to a query vote for their labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.ragged import Ints
from mufin.encode.checkpoints import Layout
from mufin.files.tensors import Tensors
from mufin.retrieve.approximate import ApproximateIndex, sample
from mufin.retrieve.build import Index, build_index, on_cpu
from mufin.retrieve.entries import Entries
from mufin.retrieve.lists import Lists
from mufin.settings import Memory as Settings
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training, nearest_vote

NEGLIGIBLE_VOTES = 0.01  # a share of votes this small hardly counts


def count_votes(query: Query, name: str, by: str, lists: Lists) -> tuple[Tensor, Tensor]:
    """Return labels and votes (B, V) of the neighbours found by signal `by`, counted once per batch."""
    if name not in query.memo:
        query.memo[name] = lists.tally(*query.neighbours[by])
    voted: tuple[Tensor, Tensor] = query.memo[name]
    return voted


def votes_for(candidates: Candidates, voted: Tensor, votes: Tensor) -> Tensor:
    """Return the votes (B, K) for each candidate; `voted` (B, V) is ascending, then padded with −1.

    >>> voted, votes = torch.tensor([[2, 7, -1]]), torch.tensor([[0.75, 0.25, 0.0]])
    >>> votes_for(Candidates(torch.tensor([[7, 3, -1]]), None), voted, votes)
    tensor([[0.2500, 0.0000, 0.0000]])
    """
    rows = candidates.rows
    if not voted.shape[1]:
        return torch.zeros(rows.shape, device=rows.device)
    ordered = voted.masked_fill(voted < 0, torch.iinfo(voted.dtype).max)
    place = torch.searchsorted(ordered, rows.contiguous()).clamp(max=voted.shape[1] - 1)
    return votes.gather(1, place).masked_fill((voted.gather(1, place) != rows) | (rows < 0), 0.0)


def log_votes(votes: Tensor) -> Tensor:
    """Return log(1 + m / 0.01): having any votes matters more than how many; see `NEGLIGIBLE_VOTES`."""
    return torch.log1p(votes / NEGLIGIBLE_VOTES)


@dataclass(frozen=True)
class Memory(Signal):
    """m_l = Σ softmax_i(⟨x̂, key_i⟩ / τ) over the nearest points i with y_il = 1."""

    name = "memory"
    description = "votes of similar training examples"
    columns = (Column("log memory", start=1.0, scale=1.0, pairs=True), Column("memory"))
    clues = ("nearest example",)

    settings: Settings
    keys: Tensor  # (M, D) unit rows: x̂¹ of the remembered points

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Memory | None:
        if not config.memory.neighbours:
            return None
        return cls(config.memory, torch.zeros(0, config.embed.dim))

    def propose(self, query: Query, k: int) -> list[Tensor]:
        """Propose the labels with the most votes."""
        return [query.most_voted(*self.votes(query), k)]

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        votes = votes_for(candidates, *self.votes(query))
        return torch.stack([log_votes(votes), votes], dim=-1)

    def votes(self, query: Query) -> tuple[Tensor, Tensor]:
        """Return the voted label rows (B, V), ascending, padded with −1, and their votes."""
        if self.name not in query.neighbours:
            query.neighbours[self.name] = self._neighbours(query.vector)
        return count_votes(query, self.name, self.name, query.known.points)

    def familiar(self, query: Query) -> Tensor:
        self.votes(query)
        return nearest_vote(query, self.name)

    def _neighbours(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        if not len(self.keys):
            none = torch.zeros(len(queries), 0, device=queries.device)
            return none.long(), none
        found = self.index.search(queries, min(self.settings.neighbours, len(self.keys)))
        return found.labels, found.similarity / self.settings.temperature

    def learn(self, training: Training) -> Memory:
        return Memory(self.settings, training.points.bags.vectors())

    def with_points(self, points: Query) -> Memory:
        return Memory(self.settings, torch.cat([self.keys, points.bags.vectors()]))

    def keep(self, labels: Ints, points: Ints) -> Memory:
        return self if len(points) == len(self.keys) else Memory(self.settings, self.keys[points])

    def to(self, device: torch.device) -> Memory:
        return self if self.keys.device == device else Memory(self.settings, self.keys.to(device))

    # -- the index over the keys -------------------------------------------------------------------------

    @property
    def entries(self) -> Entries:
        """Index entries with one label per key, so that a search returns points."""
        return Entries(self.keys, torch.arange(len(self.keys), device=self.keys.device), len(self.keys))

    @cached_property
    def index(self) -> Index:
        """The index over the keys, loaded or built on first use."""
        return build_index(self.entries, queries=sample(self.keys))

    def with_index(self, index: Index) -> Memory:
        """Return a copy with an existing index over `entries`."""
        copy = replace(self)
        copy.__dict__["index"] = index  # fill the cached property
        return copy

    def point_vectors(self) -> Tensor:
        return self.keys

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "keys", self.keys

    def restored(self, tensors: Tensors, known: Known) -> Memory:
        shape = len(known.points), self.keys.shape[1]
        return Memory(self.settings, tensors.get("keys", shape, (torch.float32,)))

    def write(self, folder: Path) -> None:
        """Write the keys and the index that a CPU needs, even if the model is on a GPU."""
        super().write(folder)
        built = on_cpu(self.__dict__.get("index"), self.entries, "auto", sample(self.keys))
        if isinstance(built, ApproximateIndex):
            built.save(folder / f"{self.name}.faiss")

    def load(self, files: Mapping[str, Path], known: Known) -> Memory:
        memory = super().load(files, known)
        path = files.get(f"{self.name}.faiss")
        if path is None or known.labels.alive.is_cuda:
            return memory
        return memory.with_index(ApproximateIndex.load(path, memory.entries))
