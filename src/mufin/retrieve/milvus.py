"""Search in Milvus: a collection holds the entries of all labels, and any number of processes search it.

A label has a number in the collection that never changes, while its row in the model does when labels are
removed.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.data.ragged import CPU, Ints
from mufin.errors import ServiceError
from mufin.files.tensors import Tensors
from mufin.retrieve.approximate import top_sorted
from mufin.retrieve.collection import Collection, among
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.shortlist import SCORE_TOLERANCE, LabelFilter, Shortlist, collect
from mufin.settings import Retrieve

MOST_LABELS = 16_384  # per query, a limit of Milvus


@dataclass(frozen=True)
class MilvusIndex:
    """Find labels in a collection; labels added since the model was saved are searched here.

    The collection changes when the model is saved: new entries come before it, removed ones go after it. What
    the collection has of labels unknown here, because another process is ahead or behind, is ignored.
    """

    collection: Collection
    exact: ExactIndex  # a copy of all entries, which is searched for added labels only
    numbers: Ints  # (P,) ascending: the number of each label in the collection; later rows are not in it
    free: int  # the next unused number
    removed: Ints  # numbers of labels that leave the collection once the model is saved

    @classmethod
    def create(cls, uri: str, prefix: str, entries: Entries) -> MilvusIndex:
        """Fill a new collection, whose name begins with the prefix."""
        entries = entries.to(CPU)
        collection = Collection.named(uri, prefix, secrets.token_hex(16))
        collection.fill(entries, np.arange(entries.n_labels))
        return cls.of(collection, entries, np.arange(entries.n_labels), entries.n_labels)

    @classmethod
    def of(cls, collection: Collection, entries: Entries, numbers: Ints, free: int) -> MilvusIndex:
        """Return the index of a collection that holds these entries, on the CPU."""
        return cls(collection, ExactIndex(entries), numbers, free, np.zeros(0, np.int64))

    @classmethod
    def read(cls, tensors: Tensors, entries: Entries, settings: Retrieve) -> MilvusIndex:
        """Return the index of a saved model, without a connection; `tensors` yielded the tensors."""
        numbers = tensors.get_rows("numbers", 1 << 46, entries.n_labels + 1).numpy()
        if (np.diff(numbers) <= 0).any():
            raise tensors.wrong("numbers are not ascending")
        fingerprint = tensors.get("fingerprint", (16,), (torch.uint8,)).numpy().tobytes().hex()
        collection = Collection.named(settings.uri or "", settings.collection, fingerprint)
        return cls.of(collection, entries, numbers[:-1], int(numbers[-1]))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what a saved model keeps besides the entries."""
        yield "numbers", torch.from_numpy(np.append(self.numbers, self.free))
        fingerprint = bytes.fromhex(self.collection.fingerprint)
        yield "fingerprint", torch.frombuffer(bytearray(fingerprint), dtype=torch.uint8)

    @property
    def n_labels(self) -> int:
        return self.exact.n_labels

    @property
    def entries(self) -> Entries:
        """All entries, on the CPU."""
        return self.exact.entries

    @cached_property
    def recent(self) -> ExactIndex | None:
        """An index of the labels that are not in the collection; None if there are none."""
        if self.n_labels == len(self.numbers):
            return None
        return self.exact.only(torch.arange(self.n_labels) >= len(self.numbers))

    @cached_property
    def counts(self) -> Ints:
        """(P,): how many entries each label has in the collection."""
        return self.exact.entry_ranges(np.arange(len(self.numbers)))[1]

    @cached_property
    def totals(self) -> tuple[int, int]:
        """How many entries the collection has, and of how many labels."""
        return int(self.counts.sum()), int(np.count_nonzero(self.counts))

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist:
        """Return the k nearest allowed labels of queries (B, D), without the pairs in exclude (B, L)."""
        device, allowed = queries.device, None if allowed is None else allowed.cpu()
        queries, label_filter = self.exact.prepare(queries, k, exclude, allowed)
        found = self._search_collection(
            queries, k, label_filter, _hidden(len(self.numbers), exclude, allowed)
        )
        if self.recent is not None:
            recent = self.recent.search(queries, k, exclude, allowed)
            both = [
                torch.cat(pair, 1).numpy()
                for pair in zip(vars(found).values(), vars(recent).values(), strict=True)
            ]
            found = Shortlist(*map(torch.from_numpy, top_sorted(both[0], both[1], k)))
        return Shortlist(found.labels.to(device), found.similarity.to(device))

    def _search_collection(
        self, queries: Tensor, k: int, label_filter: LabelFilter, hidden: Ints
    ) -> Shortlist:
        """Search the collection, without the hidden rows."""
        n_entries, present = self.totals
        limit = min(n_entries - int(self.counts[hidden].sum()), MOST_LABELS)
        if not limit:
            return Shortlist.empty(len(queries), k, queries.device)
        present -= int(np.count_nonzero(self.counts[hidden]))
        source = _Asked(self, _condition(self.numbers, hidden), present)
        return collect(source, queries, k, replace(label_filter, allowed=None, share=1.0), limit)[0]

    def rows(self, numbers: Ints) -> Ints:
        """Return the row of the label with each number, −1 if there is none."""
        place = np.searchsorted(self.numbers, numbers).clip(max=len(self.numbers) - 1)
        return np.where(self.numbers[place] == numbers, place, -1)

    def added(self, vectors: Tensor, labels: Tensor) -> MilvusIndex:
        """Return a copy with unit vectors (e, D) of new labels (e,), ascending, after the existing rows."""
        return replace(self, exact=self.exact.added(vectors.cpu(), labels.cpu()))

    def grown(self, n_labels: int) -> MilvusIndex:
        """Return a copy with this many labels; the new ones have no entries."""
        exact = copy(self.exact)
        exact.n_labels = n_labels
        return replace(self, exact=exact)

    def kept(self, labels: Ints) -> MilvusIndex:
        """Return a copy with these rows only, ascending, renumbered."""
        exact = ExactIndex(_renumbered(self.entries, torch.from_numpy(labels)))
        stored = labels[labels < len(self.numbers)]
        gone = np.setdiff1d(self.numbers, self.numbers[stored])
        return replace(
            self, exact=exact, numbers=self.numbers[stored], removed=np.union1d(self.removed, gone)
        )

    def published(self) -> MilvusIndex:
        """Put the entries of added labels into the collection."""
        if self.recent is None:
            return self
        new = np.arange(self.free, self.free + self.n_labels - len(self.numbers))
        numbers = np.concatenate([self.numbers, new])
        self.collection.add(self.recent.entries, numbers, self.free)
        return replace(self, numbers=numbers, free=self.free + len(new))

    def swept(self) -> MilvusIndex:
        """Remove the entries of removed labels from the collection."""
        try:
            if len(self.removed):
                self.collection.remove(self.removed)
        except ServiceError as error:  # the model is saved already
            warnings.warn(f"{error}; entries of removed labels stay there and are ignored", stacklevel=2)
        return replace(self, removed=self.removed[:0])


@dataclass(frozen=True)
class _Asked:
    """One search of a collection, as a source of labels, which it finds one by one rather than by entry."""

    index: MilvusIndex
    condition: str
    present: int  # labels that satisfy the condition

    @property
    def n_entries(self) -> int:
        return self.index.n_labels

    @property
    def n_labels(self) -> int:
        return self.index.n_labels

    def nearest(
        self, queries: Tensor, rows: Tensor, n: int, k: int, label_filter: LabelFilter
    ) -> tuple[Shortlist, Tensor]:
        """Return the k best of the n nearest labels, and whether that is final, (r,) bool."""
        numbers, near = self.index.collection.search(queries, n, self.condition)
        last = near[:, -1] if near.shape[1] == n else np.full(len(near), -np.inf, np.float32)
        labels = self.index.rows(numbers)
        complete = (labels >= 0).sum(1) >= self.present
        labels = np.where(label_filter.check(rows, torch.from_numpy(labels)).numpy(), labels, -1)
        labels, near = top_sorted(labels, np.where(labels < 0, np.float32(-np.inf), near), k)
        done = complete | (near[:, -1] > last + SCORE_TOLERANCE)
        return Shortlist(torch.from_numpy(labels), torch.from_numpy(near)), torch.from_numpy(done)


def _hidden(n: int, exclude: csr_matrix | None, allowed: Tensor | None) -> Ints:
    """Return which of the first n labels no query may get, ascending."""
    hidden = np.zeros(0, np.int64) if allowed is None else np.flatnonzero(~allowed[:n].numpy())
    if exclude is not None:
        labels, counts = np.unique(exclude.nonzero()[1], return_counts=True)
        shared = labels[counts == exclude.shape[0]]
        hidden = np.union1d(hidden, shared[shared < n])
    return hidden


def _condition(numbers: Ints, hidden: Ints) -> str:
    """Return the shortest expression for all labels but those of the hidden rows."""
    if 2 * len(hidden) > len(numbers):
        return among(np.delete(numbers, hidden))
    return f"not ({among(numbers[hidden])})" if len(hidden) else ""


def _renumbered(part: Entries, labels: Tensor) -> Entries:
    """Return the entries of these rows only, renumbered."""
    place = torch.searchsorted(labels, part.labels).clamp(max=max(0, len(labels) - 1))
    stays = (labels[place] == part.labels) if len(labels) else torch.zeros_like(part.labels, dtype=torch.bool)
    return Entries(part.vectors[stays], place[stays], len(labels))
