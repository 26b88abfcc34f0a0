"""Mufin: a trained model — embed, shortlist, recommend, add and remove labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.bag import Bag, PackedBags
from mufin.config import Config
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.data.thumbnails import thumbnails
from mufin.encode.embedder import Embedder
from mufin.encode.features import Advance, Features, Groups, silent
from mufin.errors import UsageError
from mufin.labels import Labels
from mufin.rank.ranker import Ranker
from mufin.retrieve.build import Index, build_index
from mufin.retrieve.shortlist import Shortlist

CHUNK = 256  # datapoints ranked at a time: bounds the memory of (B, 100, m, D)


@dataclass(frozen=True)
class Hit:
    """A recommended label, with the parts of its score: s = β c + (1 − β) a."""

    label: str
    score: float
    similarity: float  # a
    classifier: float  # c
    text: str = ""

    def __str__(self) -> str:
        return f"{self.score:.3f}  {self.label}  {self.text}"


@dataclass(frozen=True)
class Ranked:
    """Label rows (B, k), best first, −1 where fewer are eligible; and their scores."""

    labels: Tensor
    score: Tensor
    similarity: Tensor
    classifier: Tensor

    @staticmethod
    def join(parts: list[Ranked]) -> Ranked:
        return Ranked(
            *(torch.cat(tensors) for tensors in zip(*(vars(p).values() for p in parts), strict=True))
        )


class Mufin:
    """A model ready to predict; `fit` makes one, `load` reads one."""

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        ranker: Ranker,
        labels: Labels,
        beta: float,
        index: Index | None = None,
    ) -> None:
        self.config, self.beta = config, beta
        self.embedder, self.ranker = embedder.eval(), ranker.eval()
        self.labels = labels
        self.index = index or build_index(labels.entries(config.retrieve.entries), config.retrieve.search)

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
        return self.index.search(
            self.embed(items).vector(), k or self.config.retrieve.shortlist, allowed=self.labels.alive
        )

    @torch.no_grad()
    def rank(
        self, bags: PackedBags, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Ranked:
        """The k best labels of each bag; `exclude` (B, L) holds labels not to be shown for a bag."""
        if k < 1:
            raise UsageError(f"k is {k}; ask for at least one label")
        allowed = self.labels.alive if allowed is None else self.labels.alive & allowed
        parts = []
        for start in range(0, len(bags), CHUNK):
            stop = min(start + CHUNK, len(bags))
            x = bags.take(torch.arange(start, stop, device=bags.rows.device))
            hidden = None if exclude is None else exclude[start:stop]
            found = self.index.search(x.vector(), max(k, self.config.retrieve.shortlist), hidden, allowed)
            parts.append(self._score(x, found, k))
        return Ranked.join(parts)

    def _score(self, x: Bag, found: Shortlist, k: int) -> Ranked:
        """s = β c + (1 − β) a over each shortlist, sorted."""
        rows = found.labels.clamp(min=0)  # (B, R)
        empty = Bag(x.values.new_zeros(*rows.shape, 1, 1), x.mask.new_zeros(*rows.shape, 1))
        z = self.labels.bags.take(found.labels) if self.ranker.adapts else empty
        classifier = self.ranker(x, z, self.labels.weights[rows])
        score = combine(self.beta, classifier, found.similarity)
        order = score.masked_fill(found.labels < 0, -torch.inf).sort(dim=1, descending=True, stable=True)
        best = order.indices[:, :k]
        parts = (found.labels, score, found.similarity, classifier)
        return Ranked(*(part.gather(1, best) for part in parts))

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
        """The k best labels of an item, or of each item; among `allow` if given, never of `deny`.

        Fewer than k only where fewer are eligible.
        """
        listed = [items] if isinstance(items, Item) else list(items)
        if not listed:
            return []
        features = self.features(Items.of(listed))
        for i in np.flatnonzero(features.sizes == 0):
            raise UsageError(
                f"item {listed[i].id or int(i)!r} has nothing to look at: no text, no readable picture "
                f"(this model reads: {self.config.modalities})"
            )
        bags = self.embedder.embed(features, Groups.singles(np.arange(len(listed))))
        ranked = self.rank(bags, k, self._selves(listed), self._allowed(allow, deny))
        hits = self.hits(ranked)
        return hits[0] if isinstance(items, Item) else hits

    def hits(self, ranked: Ranked) -> list[list[Hit]]:
        """Rows of numbers as hits with ids and first texts."""
        values = [tensor.tolist() for tensor in vars(ranked).values()]
        wanted = np.unique(ranked.labels.cpu().numpy())
        known = {int(row): self.labels.items[int(row)] for row in wanted if row >= 0}
        return [
            [
                Hit(known[row].id, s, a, c, next(iter(known[row].texts), ""))
                for row, s, a, c in zip(*columns, strict=True)
                if row >= 0
            ]
            for columns in zip(*values, strict=True)
        ]

    def _allowed(self, allow: Sequence[str] | None, deny: Sequence[str]) -> Tensor | None:
        """The label filters as a mask (L,)."""
        if allow is None and not deny:
            return None
        mask = torch.full_like(self.labels.alive, allow is None)
        if allow is not None:
            mask[self.labels.rows(allow)] = True
        if deny:
            mask[self.labels.rows(deny)] = False
        return mask

    def _selves(self, items: Sequence[Item]) -> csr_matrix | None:
        """(B, L): the label that each item is itself, where datapoints and labels are the same things."""
        if not self.labels.own_items:
            return None
        rows = self.labels.items.rows([item.id for item in items])
        known = np.flatnonzero(rows >= 0)
        shape = (len(items), len(self.labels.alive))
        return csr_matrix((np.ones(len(known), bool), (known, rows[known])), shape=shape)

    @torch.no_grad()
    def score(self, bags: PackedBags, candidates: PackedBags) -> Tensor:
        """s (B, C) of each bag with each candidate, as labels without training: α = 1, no shortlist."""
        z = candidates.take(torch.arange(len(candidates), device=candidates.rows.device))  # (C, n, D)
        w, rows = z.vector(), torch.nn.functional.normalize(z.values, dim=-1)
        parts = []
        for start in range(0, len(bags), CHUNK):
            x = bags.take(torch.arange(start, min(start + CHUNK, len(bags)), device=bags.rows.device))
            similarity = (
                torch.einsum("bd,cnd->bcn", x.vector(), rows).masked_fill(~z.mask, -torch.inf).amax(-1)
            )
            each = Bag(z.values.expand(len(x), *z.values.shape), z.mask.expand(len(x), *z.mask.shape))
            parts.append(combine(self.beta, self.ranker(x, each, w.expand(len(x), *w.shape)), similarity))
        return torch.cat(parts)

    # -- labels come and go ----------------------------------------------------------------------------------

    def add_labels(self, items: Item | Sequence[Item]) -> None:
        """Labels that can be recommended at once, without training: α = 1, no centroid."""
        table = self._table(items)
        self._check_new(table.ids.to_pylist())
        features = self.features(table)
        if (features.sizes == 0).any():  # as in training, a label keeps what it has rather than nothing
            features = self.embedder.features(table, cached=False)
        for i in np.flatnonzero(features.sizes == 0):
            raise UsageError(
                f"label {table[int(i)].id!r} has nothing to look at; give it a text or a picture"
            )
        kept = thumbnails(table) if self.config.run.pictures else table.only("text")
        fresh = self.labels.added(kept, self.embedder.embed(features, Groups.singles(np.arange(len(table)))))
        last = torch.arange(len(fresh.alive), device=fresh.alive.device) >= len(self.labels.alive)
        entries = fresh.entries(self.config.retrieve.entries).only(last)
        self.index.add(entries.vectors, entries.labels)
        self.labels = fresh

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
            self.labels = self.labels.compact()
            self.index = build_index(
                self.labels.entries(self.config.retrieve.entries), self.config.retrieve.search
            )

    def remove_labels(self, ids: str | Sequence[str]) -> None:
        """Labels that are never recommended again; gone from the folder when the model is next saved."""
        listed = [ids] if isinstance(ids, str) else list(ids)
        self.labels = self.labels.removed(self.labels.rows(listed))

    def _table(self, items: Item | Sequence[Item]) -> Items:
        return Items.of([items] if isinstance(items, Item) else items)


def combine(beta: float, classifier: Tensor, similarity: Tensor) -> Tensor:
    """s = β c + (1 − β) a; at β = 1 a missing similarity (−inf) does not spoil it."""
    return beta * classifier + (1 - beta) * similarity if beta < 1 else classifier
