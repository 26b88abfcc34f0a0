"""Mufin: a trained model — embed, shortlist, recommend, add and remove labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.bag import Bag, PackedBags
from mufin.candidates import eligible_votes, meant, merge, shared_words
from mufin.config import Config
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.data.thumbnails import thumbnails
from mufin.encode.embedder import Embedder
from mufin.encode.features import Advance, Features, Groups, silent
from mufin.errors import UsageError
from mufin.hits import Hit, Ranked
from mufin.inference import at_ease
from mufin.labels import Labels
from mufin.ragged import offsets_of
from mufin.rank.affinity import Affinity
from mufin.rank.fusion import PAPER_BETA, Fusion, Parts
from mufin.rank.ranker import Ranker
from mufin.retrieve.build import Index, build_index
from mufin.retrieve.lists import Lists
from mufin.retrieve.memory import Memory
from mufin.retrieve.shortlist import Shortlist

CHUNK = 256  # datapoints ranked at a time: bounds the memory of (B, 100, m, D)


class Mufin:
    """A model ready to predict; `fit` makes one, `load` reads one."""

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        ranker: Ranker,
        labels: Labels,
        fusion: Fusion,
        memory: Memory | None = None,
        index: Index | None = None,
        affinity: Affinity | None = None,
    ) -> None:
        self.config, self.fusion, self.affinity = config, fusion, affinity
        self.embedder, self.ranker = embedder.eval(), ranker.eval()
        self.labels = labels
        self.memory = memory or Memory.empty(config.embed.dim, labels.alive.device)
        self.index = index or self._new_index()
        self.saved: dict[
            Path, dict[str, Any]
        ] = {}  # the manifest in each folder that it was read from or saved to

    def _new_index(self) -> Index:
        settings = self.config.retrieve
        return build_index(self.labels.entries(settings.entries), settings.search, self.memory.sample())

    def __repr__(self) -> str:
        return f"Mufin({len(self.labels):,} labels, D = {self.config.embed.dim})"

    # -- items to bags ---------------------------------------------------------------------------------------

    def embed(self, items: Item | Sequence[Item]) -> Bag:
        """X̂¹ of each item, padded: values (B, m, D), mask (B, m); `.vector()` gives x̂¹."""
        table = self._table(items)
        with torch.no_grad():
            bag: Bag = self.embedder(self.features(table).batch(Groups.singles(np.arange(len(table)))))
        return bag

    def features(self, items: Items, cached: bool = False, progress: Advance = silent) -> Features:
        """The frozen outputs of the descriptors that this model looks at."""
        return self.embedder.features(items.only(self.config.modalities), cached, progress)

    # -- bags to labels --------------------------------------------------------------------------------------

    def shortlist(self, items: Item | Sequence[Item], k: int | None = None) -> Shortlist:
        """R: the k nearest unique labels of each item by similarity alone."""
        table = self._table(items)
        wanted = k or self.config.retrieve.shortlist
        return self.index.search(
            self.embed(items).vector(), wanted, self.own_labels(table), self.labels.living()
        )

    @torch.no_grad()
    def rank(
        self, bags: PackedBags, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Ranked:
        """The k best labels of each bag; `exclude` (B, L) holds labels not to be shown for a bag."""
        if k < 1:
            raise UsageError(f"k is {k}; ask for at least one label")
        if not len(self.labels.alive) or not len(bags):
            return Ranked.nothing(len(bags), bags.rows.device)
        with at_ease(bags.rows.device):
            return Ranked.join([self._best(*part, k) for part in self._candidates(bags, k, exclude, allowed)])

    @torch.no_grad()
    def candidates(self, bags: PackedBags, exclude: csr_matrix | None = None) -> tuple[Tensor, Parts]:
        """The labels (B, K) that each bag is ranked over, −1 where fewer, and the parts of their scores."""
        labels, parts = zip(*self._candidates(bags, 1, exclude, None), strict=True)
        width = max(part.shape[1] for part in labels)
        padded = [F.pad(part, (0, width - part.shape[1]), value=-1) for part in labels]
        return torch.cat(padded), Parts.join([part.widened(width) for part in parts])

    def _candidates(
        self, bags: PackedBags, k: int, exclude: csr_matrix | None, allowed: Tensor | None
    ) -> Iterator[tuple[Tensor, Parts]]:
        """Chunk by chunk: the shortlist of each bag, joined with what its memory votes for."""
        allowed = self.labels.living(allowed)
        shortlist = self.config.retrieve.shortlist
        width = min(max(k, shortlist), len(self.labels.alive))
        chunk = 2 * CHUNK if bags.rows.is_cuda else CHUNK  # what one pass of a search on a GPU takes
        for rows in torch.arange(len(bags), device=bags.rows.device).split(chunk):
            vector = (x := bags.take(rows)).vector()
            hidden = None if exclude is None else exclude[int(rows[0]) : int(rows[-1]) + 1]
            found = self.index.search(vector, width, hidden, allowed)
            some = rows.cpu().numpy()
            words, titles = (None if each is None else each[some] for each in (bags.words, bags.titles))
            labels, similarity = found.labels, found.similarity
            votes = [torch.zeros_like(similarity)] * 4
            if len(self.memory):
                voted = self.memory.ballots(vector, words, self.config.memory)
                shown = [eligible_votes(*cast, shortlist, hidden, allowed) for cast in voted]
                labels, votes = merge(labels, *shown)
            z = self.labels.bags.take(labels) if self.ranker.adapts else None
            if labels.shape[1] > width:
                more, own = labels[:, width:], None if z is None else z.map(lambda part: part[:, width:])
                entries = self.config.retrieve.entries
                further = self.labels.similarity(vector, more, entries, own, self.index)
                similarity = torch.cat([similarity, further], dim=1)
                labels = labels.masked_fill(similarity.isinf(), -1)  # a label with nothing to compare
            shared = shared_words(words, titles, self.labels.bags, labels)
            alike = meant(None if bags.meaning is None else bags.meaning[rows], self.labels.bags, labels)
            yield labels, self._parts(x, z, labels, similarity, votes, shared, alike)

    def _parts(
        self,
        x: Bag,
        z: Bag | None,
        labels: Tensor,
        similarity: Tensor,
        votes: list[Tensor],
        shared: Tensor,
        alike: Tensor,
    ) -> Parts:
        rows = labels.clamp(min=0)  # (B, K)
        z = z or Bag(x.values.new_zeros(*rows.shape, 1, 1), x.mask.new_zeros(*rows.shape, 1))
        classifier = self.ranker(x, z, self.labels.classifiers(rows))
        near, like, titles, titles_by_words = votes
        return Parts(
            classifier, similarity, near, like, titles, titles_by_words, shared, alike,
            self.labels.frequency[rows], labels >= 0,
        )  # fmt: skip

    def _best(self, labels: Tensor, parts: Parts, k: int) -> Ranked:
        """The k candidates of the highest score."""
        score = self.fusion.score(parts)
        shown = (
            score, parts.similarity, parts.classifier, parts.memory, parts.words, parts.titles,
            parts.titles_by_words, parts.overlap, parts.meaning, self.fusion.probability(score),
        )  # fmt: skip
        best = score.sort(dim=1, descending=True, stable=True).indices[:, :k]
        return Ranked(*(values.gather(1, best) for values in (labels, *shown)))

    @overload
    def recommend(
        self, items: Item, k: int = 10, allow: Sequence[str] | None = None, deny: Sequence[str] = ()
    ) -> list[Hit]: ...
    @overload
    def recommend(
        self, items: Sequence[Item], k: int = 10, allow: Sequence[str] | None = None, deny: Sequence[str] = ()
    ) -> list[list[Hit]]: ...
    def recommend(
        self,
        items: Item | Sequence[Item],
        k: int = 10,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
    ) -> list[Hit] | list[list[Hit]]:
        """The k best labels of an item, or of each, among `allow` if given, never of `deny`."""
        listed = [items] if isinstance(items, Item) else list(items)
        if not listed:
            return []
        with at_ease(self.labels.alive.device):
            table = Items.of(listed)
            own, allowed = self.own_labels(table), self.labels.allowed(allow, deny)
            hits = self.hits(self.rank(self._bags(table), k, own, allowed))
        return hits[0] if isinstance(items, Item) else hits

    def hits(self, ranked: Ranked) -> list[list[Hit]]:
        """Rows of numbers as hits with ids and first texts."""
        rows = np.unique(ranked.labels.cpu().numpy())
        rows = rows[rows >= 0]
        known = self.labels.names(rows)
        return [
            [
                Hit(known[row][0], s, a, c, m, n, m_said, n_said, o, t, p, known[row][1])
                for row, s, a, c, m, n, m_said, n_said, o, t, p in zip(*columns, strict=True)
                if row >= 0
            ]
            for columns in zip(*(tensor.tolist() for tensor in vars(ranked).values()), strict=True)
        ]

    def own_labels(self, items: Items) -> csr_matrix | None:
        """(B, L): the label that each item is itself, where datapoints and labels are the same things."""
        if not self.labels.own_items:
            return None
        rows = self.labels.items.rows(items.ids)
        known = np.flatnonzero(rows >= 0)
        shape = (len(items), len(self.labels.alive))
        return csr_matrix((np.ones(len(known), bool), (known, rows[known])), shape=shape)

    @torch.no_grad()
    def score(self, bags: PackedBags, candidates: PackedBags) -> Tensor:
        """s (B, C) of each bag with each candidate, as a label without training: w = ẑ, no memory.

        A learnt mixture says nothing about such labels: then β is the paper's.
        """
        beta = PAPER_BETA if self.config.rank.beta == "learnt" else self.config.rank.beta
        c, a = self.ranker.untrained(bags, candidates)
        return beta * c + (1 - beta) * a

    # -- labels come and go ----------------------------------------------------------------------------------

    def add_labels(self, items: Item | Sequence[Item]) -> None:
        """Labels that can be recommended at once, without training: α = 1, no centroid."""
        table = self._table(items)
        if not len(table):
            return
        self._check_new(table.ids.to_pylist())
        bags = self._label_bags(table)
        kept = thumbnails(table) if self.config.run.pictures else table.only("text")
        fresh = self.labels.added(kept, bags)
        last = torch.arange(len(fresh.alive), device=fresh.alive.device) >= len(self.labels.alive)
        entries = fresh.entries(self.config.retrieve.entries).only(last)
        if len(entries):
            self.index = self.index.added(entries.vectors, entries.labels)
        else:  # an index of centroids alone: these labels cannot be found, but they are there
            self.labels = fresh
            self.index = self._new_index()
        self.labels = fresh

    def _label_bags(self, table: Items) -> PackedBags:
        """Ẑ¹ of new labels, which are read as in training."""
        read = table.only(self.config.modalities, lacking="empty" if self.labels.own_items else "keep")
        features = self.embedder.features(read, cached=False)
        for i in np.flatnonzero(features.sizes == 0):
            raise UsageError(
                f"label {table[int(i)].id!r} has nothing to look at; give it a text or a picture "
                f"(this model reads: {self.config.modalities})"
            )
        return self.embedder.embed(features, Groups.singles(np.arange(len(table))))

    def _check_new(self, ids: list[str]) -> None:
        """Ids that no living label has; a removed label's row is given up before its id is used again."""
        rows = self.labels.items.rows(ids)
        living = self.labels.alive.cpu().numpy()
        seen: set[str] = set()
        for name, row in zip(ids, rows, strict=True):
            if not name or name in seen or (row >= 0 and living[row]):
                raise UsageError(f"label id {name!r} is taken or empty; give each label an id of its own")
            seen.add(name)
        if (rows >= 0).any():
            self.compact()

    def remove_labels(self, ids: str | Sequence[str]) -> None:
        """Labels that are never recommended again; gone from the folder when the model is next saved."""
        listed = [ids] if isinstance(ids, str) else list(ids)
        self.labels = self.labels.removed(self.labels.rows(listed))

    def compact(self) -> None:
        """Give up the rows of removed labels, in the index and in the memory too."""
        alive = self.labels.alive
        if bool(alive.all()):
            return
        new_row = torch.where(alive, alive.cumsum(0) - 1, -1)
        self.labels, self.memory = self.labels.compact(), self.memory.renumbered(new_row)
        self.index = self._new_index()

    def add_examples(self, items: Item | Sequence[Item], labels: Sequence[Sequence[str]]) -> None:
        """Remember these items as training points of these labels, without training: they vote at once.

        A label that is given to an item several times counts once.
        """
        table = self._table(items)
        if not self.config.memory.neighbours:
            raise UsageError("this model has no memory; train with memory.neighbours = 50 or so")
        if len(table) != len(labels):
            raise UsageError(f"{len(table)} items, but labels for {len(labels)}; give one list an item")
        rows = [self.labels.rows([ids] if isinstance(ids, str) else ids) for ids in labels]
        device = self.labels.alive.device
        offsets = torch.from_numpy(offsets_of([len(row) for row in rows])).to(device)
        flat = torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *rows])).to(device)
        listed = Lists(offsets, flat).unique()
        bags = self._bags(table)
        self.memory = self.memory.with_points(bags.vectors(), listed.offsets, listed.labels, bags.words)
        counts = torch.bincount(listed.labels, minlength=len(self.labels.alive))
        self.labels = replace(self.labels, frequency=self.labels.frequency + counts)

    def _bags(self, table: Items) -> PackedBags:
        """X̂¹ of each item, none of which may be empty."""
        features = self.features(table)
        for i in np.flatnonzero(features.sizes == 0):
            raise UsageError(
                f"item {table[int(i)].id or int(i)!r} has nothing to look at: no text, no readable picture "
                f"(this model reads: {self.config.modalities})"
            )
        return self.embedder.embed(features, Groups.singles(np.arange(len(table))))

    def _table(self, items: Item | Sequence[Item]) -> Items:
        listed = [items] if isinstance(items, Item) else list(items)
        for item in listed:
            if not isinstance(item, Item):
                raise UsageError(f"expected an Item, got {item!r}; write Item(texts=[…], images=[…])")
        return Items.of(listed)
