"""Labels: all that a trained model knows of its labels, computed once and read at every prediction."""

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

FEW = 50_000


@dataclass(frozen=True)
class Labels:
    """One row a label. Never changed in place: adding and removing give new Labels."""

    items: Items  # ids, texts, small pictures
    bags: PackedBags  # Ẑ¹, half precision: it is read at random places, so its bytes are what it costs
    weights: Tensor  # (L, D) w_l, half precision
    alpha: Tensor  # (L,) α_l; 1 for a label without training
    centroids: Tensor  # (L, D) μ_l
    has_centroid: Tensor  # (L,) bool
    frequency: Tensor  # (L,) how many training points had the label
    alive: Tensor  # (L,) bool; False once removed, until the model is saved
    own_items: bool  # datapoints and labels are the same things: an item is never its own label
    untrained: float = 1.0  # w = untrained · ẑ for a label without training, see `train/assemble.py`

    def __len__(self) -> int:
        return int(self.alive.sum())

    def names(self, rows: np.ndarray) -> dict[int, tuple[str, str]]:
        """Id and first text of these rows, by row."""
        if self._few is not None:
            return {row: self._few[row] for row in rows.tolist()}
        ids, texts = (column.take(pa.array(rows)) for column in (self.items.ids, self.items.texts))
        return dict(zip(rows.tolist(), _named(ids, texts), strict=True))

    @cached_property
    def _few(self) -> list[tuple[str, str]] | None:
        """All of them, if they are few: a look into a list is faster than one into a table."""
        return _named(self.items.ids, self.items.texts) if len(self.items) <= FEW else None

    def entries(self, kinds: Sequence[Kind]) -> Entries:
        """What these labels put into the index."""
        bags = self.bags
        return Entries.build(
            bags.rows.float(), bags.offsets, self.centroids, self.has_centroid, kinds, vectors=bags.whole
        )

    def classifiers(self, rows: Tensor) -> Tensor:
        """w_l (..., D) of these rows (...)."""
        return F.embedding(rows, self.weights).float()

    def similarity(
        self,
        x: Tensor,
        rows: Tensor,
        kinds: Sequence[Kind],
        z: Bag | None = None,
        index: Index | None = None,
    ) -> Tensor:
        """a = max ⟨x̂, v⟩ over what labels `rows` (B, K) have in an index of these kinds, for x̂ (B, D).

        Their bags z (B, K, n, D) may be given, or the index itself: it may know a faster way.
        """
        if isinstance(index, ApproximateIndex):
            return index.of_labels(x, rows)
        z, some = z or self.bags.take(rows), rows.clamp(min=0)
        best = torch.full(rows.shape, -torch.inf, device=x.device)
        if "bag" in kinds:
            own = torch.bmm(z.values.flatten(1, 2), x[..., None]).view(z.mask.shape)
            own = own / z.values.norm(dim=-1).clamp(min=1e-12)
            best = torch.maximum(best, own.masked_fill(~z.mask, -torch.inf).amax(dim=-1))
        if "vector" in kinds:
            own = torch.bmm(z.vector(), x[..., None])[..., 0]
            best = torch.maximum(best, own.masked_fill(~z.mask.any(-1), -torch.inf))
        if "centroid" in kinds:
            own = torch.bmm(F.embedding(some, self.centroids), x[..., None])[..., 0]
            best = torch.maximum(best, own.masked_fill(~self.has_centroid[some], -torch.inf))
        return best.masked_fill(rows < 0, -torch.inf)

    def allowed(self, allow: Sequence[str] | None, deny: Sequence[str]) -> Tensor | None:
        """Filters by id as a mask (L,); None if there are none."""
        if allow is None and not deny:
            return None
        mask = torch.full_like(self.alive, allow is None)
        if allow is not None:
            mask[self.rows(allow)] = True
        if deny:
            mask[self.rows(deny)] = False
        return mask

    def living(self, allowed: Tensor | None = None) -> Tensor | None:
        """Which labels live, and are allowed (L,) bool; None if that is all of them."""
        if allowed is not None:
            return self.alive & allowed
        return None if self._all_live else self.alive

    @cached_property
    def _all_live(self) -> bool:
        return bool(self.alive.all())

    def has(self, id: str) -> bool:
        """Whether there is a living label of this id."""
        row = int(self.items.rows([id])[0])
        return row >= 0 and bool(self.alive[row])

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """The row of each id; an id that is unknown or removed is an error."""
        rows = self.items.rows(list(ids))
        for name, row in zip(ids, rows, strict=True):
            if row < 0 or not self.alive[row]:
                raise UsageError(f"there is no label {name!r} in this model")
        return rows

    def align(self, relation: csr_matrix, labels: Items) -> csr_matrix:
        """Columns of a catalogue's labels (n, L) as columns of these; what is not here is dropped."""
        if relation.shape[1] == len(self.items) and labels.ids.equals(self.items.ids):
            return relation
        pairs = relation.tocoo()
        columns = self.items.rows(labels.ids)[pairs.col]
        known = columns >= 0
        shape = (relation.shape[0], len(self.items))
        return csr_matrix((np.ones(int(known.sum()), bool), (pairs.row[known], columns[known])), shape=shape)

    def added(self, items: Items, bags: PackedBags) -> Labels:
        """With these labels after the others: w = ẑ to the scale of the others, no centroid."""
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
        """Without these rows; the others keep their numbers."""
        alive = self.alive.clone()
        alive[torch.from_numpy(rows).to(alive.device)] = False
        return replace(self, alive=alive)

    def compact(self) -> Labels:
        """Only the living rows, numbered anew."""
        if bool(self.alive.all()):
            return self
        kept = self.alive.nonzero()[:, 0].cpu()
        return Labels(
            self.items.take(kept.numpy()), self.bags.select(kept), self.weights[kept], self.alpha[kept],
            self.centroids[kept], self.has_centroid[kept], self.frequency[kept], self.alive[kept],
            self.own_items, self.untrained,
        )  # fmt: skip

    def to(self, device: torch.device) -> Labels:
        names = ("bags", "weights", "alpha", "centroids", "has_centroid", "frequency", "alive")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def _named(ids: pa.ChunkedArray, texts: pa.ChunkedArray) -> list[tuple[str, str]]:
    """Id and first text of each."""
    rows = zip(ids.to_pylist(), texts.to_pylist(), strict=True)
    return [(id, next(iter(some or ()), "")) for id, some in rows]
