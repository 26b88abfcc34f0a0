"""Index entries: unit vectors, each with the label it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from mufin.data.ragged import Ints, offsets_of
from mufin.errors import UsageError

Kind = Literal["bag", "vector", "centroid"]
MIN_MEAN_NORM = 1e-6  # a shorter mean has no meaningful direction


@dataclass(frozen=True)
class Entries:
    """Unit vectors sorted by label; a label may own any number of them."""

    vectors: Tensor  # (E, D) f32
    labels: Tensor  # (E,) int64, ascending
    n_labels: int

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or self.labels.shape != self.vectors.shape[:1]:
            raise UsageError(
                f"entries must be vectors (E, D) and labels (E,), not {tuple(self.vectors.shape)} and "
                f"{tuple(self.labels.shape)}"
            )
        if len(self) and (int(self.labels.min()) < 0 or int(self.labels.max()) >= self.n_labels):
            raise UsageError(
                f"entries have label rows {int(self.labels.min())}..{int(self.labels.max())}, "
                f"but there are {self.n_labels} labels"
            )
        if bool((self.labels[1:] < self.labels[:-1]).any()):
            raise UsageError("entries must be in ascending order of label: sort them first")

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Entries:
        """Move the entries to the device."""
        return Entries(self.vectors.to(device), self.labels.to(device), self.n_labels)

    @cached_property
    def offsets(self) -> Ints:
        """Offsets (L + 1,): label l owns entries offsets[l] : offsets[l + 1]."""
        return offsets_of(torch.bincount(self.labels, minlength=self.n_labels).cpu().numpy())

    @staticmethod
    def build(
        bag_rows: Tensor,  # (Σm, D)
        bag_offsets: Tensor,  # (L + 1,): the bag of label l is bag_rows[bag_offsets[l] : bag_offsets[l + 1]]
        centroids: Tensor | None = None,  # (L, D)
        has_centroid: Tensor | None = None,  # (L,) bool; None: every label
        kinds: Sequence[Kind] = ("bag", "centroid"),
        vectors: Tensor | None = None,  # (L, D); None: the sums of the bags
    ) -> Entries:
        """Build the entries of all labels, of these kinds, sorted by label.

        A label l has N(row) for each row of its bag Ẑ_l, its vector ẑ_l = N(1ᵀẐ_l) and its centroid N(μ_l).
        A label with an empty bag and no centroid has no entries.
        """
        if not kinds or not set(kinds) <= set(get_args(Kind)):
            raise UsageError(f"kinds of entries must be among {get_args(Kind)}, not {tuple(kinds)}")
        sizes = bag_offsets.diff()  # (L,)
        n_labels = len(sizes)
        all_labels = torch.arange(n_labels, device=bag_rows.device)
        owner = all_labels.repeat_interleave(sizes.to(bag_rows.device))  # (Σm,)
        parts: list[tuple[Tensor, Tensor]] = []
        if "bag" in kinds:
            parts.append((bag_rows, owner))
        if "vector" in kinds:
            if vectors is None:
                vectors = bag_rows.new_zeros(n_labels, bag_rows.shape[1]).index_add_(0, owner, bag_rows)
            chosen = all_labels[sizes.to(bag_rows.device) > 0]
            parts.append((vectors[chosen], chosen))
        if "centroid" in kinds and centroids is not None:
            chosen = all_labels if has_centroid is None else all_labels[has_centroid.to(bag_rows.device)]
            parts.append((centroids.to(bag_rows.device)[chosen], chosen))
        labels = torch.cat([part[1] for part in parts])  # (E,)
        found = torch.cat([part[0] for part in parts])  # (E, D)
        if len(parts) > 1:
            labels, order = labels.sort(stable=True)
            found = found[order]
        return Entries(normalize(found.float(), dim=1), labels, n_labels)

    def only(self, allowed: Tensor) -> Entries:
        """Return the entries of the allowed labels (L,) bool; label rows keep their numbers."""
        keep = allowed.to(self.labels.device)[self.labels].nonzero()[:, 0]
        return Entries(self.vectors[keep], self.labels[keep], self.n_labels)


def centroids(vectors: Tensor, relevance: csr_matrix) -> tuple[Tensor, Tensor]:
    """Return centroids μ_l = N(mean {x̂¹_i : y_il = 1}) (L, D) and which labels have one (L,) bool.

    vectors (N, D) are the x̂¹ of the datapoints; relevance (N, L) is non-zero where a label is relevant.
    """
    if relevance.shape[0] != len(vectors):
        raise UsageError(
            f"relevance has {relevance.shape[0]} rows, but there are {len(vectors)} vectors: "
            "provide one row per datapoint"
        )
    points, labels = relevance.nonzero()
    counts = np.bincount(labels, minlength=relevance.shape[1])  # (L,)
    share = (1 / counts[labels]).astype(np.float32)
    members = csr_matrix((share, (labels, points)), shape=relevance.shape[::-1])  # (L, N), rows sum to 1
    means = torch.from_numpy(members @ vectors.detach().float().cpu().numpy())  # (L, D)
    has = means.norm(dim=1) > MIN_MEAN_NORM
    return normalize(means, dim=1).to(vectors.device), has.to(vectors.device)
