"""Store the labels of a trained model: computed once, read at every prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.data.items import Items
from mufin.encode.bag import Bag, PackedBags
from mufin.errors import UsageError
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.build import Index
from mufin.retrieve.entries import Entries, Kind

NAME_CACHE_LIMIT = 50_000  # labels whose ids and first texts are kept as Python objects


@dataclass(frozen=True, repr=False)
class Labels:
    """All labels, one per row. Immutable: adding and removing labels return new Labels."""

    items: Items  # ids, texts, thumbnails
    bags: PackedBags  # Ẑ¹, in half precision since random reads are limited by memory bandwidth
    weights: Tensor  # (L, D) w_l, in half precision
    alpha: Tensor  # (L,) α_l; 1 for an untrained label
    centroids: Tensor  # (L, D) μ_l
    has_centroid: Tensor  # (L,) bool
    frequency: Tensor  # (L,) number of training points with the label
    alive: Tensor  # (L,) bool; False for removed labels, whose rows remain until the model is saved
    own_items: bool  # datapoints are labels themselves; an item is never its own label
    untrained: float = 1.0  # κ: w = κ ẑ for an untrained label, see `train/assemble.py`

    def __len__(self) -> int:
        return int(self.alive.sum())

    def __repr__(self) -> str:
        return f"Labels({len(self):,})"

    def names(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Return id and first text of each row, by row."""
        if self._name_cache is not None:
            return {row: self._name_cache[row] for row in rows.tolist()}
        ids, texts = (column.take(pa.array(rows)) for column in (self.items.ids, self.items.texts))
        return dict(zip(rows.tolist(), _ids_and_first_texts(ids, texts), strict=True))

    @cached_property
    def _name_cache(self) -> list[tuple[str, str]] | None:
        """Id and first text of all labels as a list, faster to read than a table; None if too many."""
        if len(self.items) > NAME_CACHE_LIMIT:
            return None
        return _ids_and_first_texts(self.items.ids, self.items.texts)

    def entries(self, kinds: Sequence[Kind]) -> Entries:
        """Return the index entries of these labels."""
        bags = self.bags
        return Entries.build(
            bags.rows.float(), bags.offsets, self.centroids, self.has_centroid, kinds, vectors=bags.whole
        )

    def classifiers(self, rows: Tensor) -> Tensor:
        """Return w_l (..., D) of these rows (...)."""
        return F.embedding(rows, self.weights).float()

    def similarity(
        self,
        x: Tensor,
        rows: Tensor,
        kinds: Sequence[Kind],
        z: Bag | None = None,
        index: Index | None = None,
    ) -> Tensor:
        """Return a = max ⟨x̂, v⟩ (B, K) over the index entries v of labels `rows` (B, K), for x̂ (B, D).

        Pass the bags z (B, K, n, D) if already gathered; an approximate index computes a faster.
        """
        if isinstance(index, ApproximateIndex):
            return index.of_labels(x, rows)
        z, valid = z or self.bags.take(rows), rows.clamp(min=0)
        best = torch.full(rows.shape, -torch.inf, device=x.device)
        if "bag" in kinds:
            own = torch.bmm(z.values.flatten(1, 2), x[..., None]).view(z.mask.shape)
            own = own / z.values.norm(dim=-1).clamp(min=1e-12)
            best = torch.maximum(best, own.masked_fill(~z.mask, -torch.inf).amax(dim=-1))
        if "vector" in kinds:
            own = torch.bmm(z.vector(), x[..., None])[..., 0]
            best = torch.maximum(best, own.masked_fill(~z.mask.any(-1), -torch.inf))
        if "centroid" in kinds:
            own = torch.bmm(F.embedding(valid, self.centroids), x[..., None])[..., 0]
            best = torch.maximum(best, own.masked_fill(~self.has_centroid[valid], -torch.inf))
        return best.masked_fill(rows < 0, -torch.inf)

    def allowed(self, allow: Sequence[str] | None, deny: Sequence[str]) -> Tensor | None:
        """Return filters by id as a mask (L,), or None without filters."""
        if allow is None and not deny:
            return None
        mask = torch.full_like(self.alive, allow is None)
        if allow is not None:
            mask[self.rows(allow)] = True
        if deny:
            mask[self.rows(deny)] = False
        return mask

    def eligible(self, allowed: Tensor | None = None) -> Tensor | None:
        """Return a mask (L,) of labels that are allowed and not removed, or None if that is all labels."""
        if allowed is not None:
            return self.alive & allowed
        return None if self._all_alive else self.alive

    @cached_property
    def _all_alive(self) -> bool:
        return bool(self.alive.all())

    def has(self, id: str) -> bool:
        """Return whether there is a label with this id that has not been removed."""
        row = int(self.items.rows([id])[0])
        return row >= 0 and bool(self.alive[row])

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """Return the row of each id; raise a UsageError for an unknown or removed id."""
        rows = self.items.rows(list(ids))
        for name, row in zip(ids, rows, strict=True):
            if row < 0 or not self.alive[row]:
                raise UsageError(f"this model has no label {name!r}")
        return rows

    def align(self, relation: csr_matrix, labels: Items) -> csr_matrix:
        """Map a relation (n, L) from a catalogue's labels to these labels; drop unknown labels."""
        if relation.shape[1] == len(self.items) and labels.ids.equals(self.items.ids):
            return relation
        pairs = relation.tocoo()
        columns = self.items.rows(labels.ids)[pairs.col]
        known = columns >= 0
        shape = (relation.shape[0], len(self.items))
        return csr_matrix((np.ones(int(known.sum()), bool), (pairs.row[known], columns[known])), shape=shape)

    def added(self, items: Items, bags: PackedBags) -> Labels:
        """Append untrained labels: w = κ ẑ, no centroid."""
        n, z = len(items), bags.vectors()
        return replace(
            self,
            items=self.items.concat(items),
            bags=self.bags.concat(bags),
            weights=torch.cat([self.weights, (self.untrained * z).to(self.weights.dtype)]),
            alpha=torch.cat([self.alpha, self.alpha.new_ones(n)]),
            centroids=torch.cat([self.centroids, torch.zeros_like(z)]),
            has_centroid=torch.cat([self.has_centroid, self.has_centroid.new_zeros(n)]),
            frequency=torch.cat([self.frequency, self.frequency.new_zeros(n)]),
            alive=torch.cat([self.alive, self.alive.new_ones(n)]),
        )

    def removed(self, rows: np.ndarray) -> Labels:
        """Mark these rows as removed; the other rows keep their numbers."""
        alive = self.alive.clone()
        alive[torch.from_numpy(rows).to(alive.device)] = False
        return replace(self, alive=alive)

    def compact(self) -> Labels:
        """Drop removed rows and renumber the others."""
        if self._all_alive:
            return self
        kept = self.alive.nonzero()[:, 0].cpu()
        return Labels(
            self.items.take(kept.numpy()), self.bags.select(kept), self.weights[kept], self.alpha[kept],
            self.centroids[kept], self.has_centroid[kept], self.frequency[kept], self.alive[kept],
            self.own_items, self.untrained,
        )  # fmt: skip

    def to(self, device: torch.device) -> Labels:
        """Move all tensors to the device."""
        names = ("bags", "weights", "alpha", "centroids", "has_centroid", "frequency", "alive")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def _ids_and_first_texts(ids: pa.ChunkedArray, texts: pa.ChunkedArray) -> list[tuple[str, str]]:
    """Pair each id with its first text, or "" if it has none."""
    rows = zip(ids.to_pylist(), texts.to_pylist(), strict=True)
    return [(id, next(iter(own or ()), "")) for id, own in rows]
