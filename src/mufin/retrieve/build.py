"""Choose an index: exact for few entries or on a GPU, approximate otherwise."""

from __future__ import annotations

from typing import Literal, Protocol

from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.data.ragged import CPU
from mufin.errors import UsageError
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.exact_gpu import ScanIndex
from mufin.retrieve.shortlist import Shortlist

How = Literal["auto", "exact", "approximate", "milvus"]
EXACT_MAX_ENTRIES = 50_000  # exact search over these takes a few milliseconds on a CPU


class Index(Protocol):
    """The interface of every index."""

    @property
    def n_labels(self) -> int: ...

    @property
    def entries(self) -> Entries: ...

    def search(
        self, queries: Tensor, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Shortlist: ...

    def added(self, vectors: Tensor, labels: Tensor) -> Index: ...


def build_index(entries: Entries, how: How = "auto", queries: Tensor | None = None) -> Index:
    """Build the index over entries; representative queries (B, D) tune an approximate one."""
    match how:
        case "auto" | "milvus":  # entries join a collection when the model is saved
            small = len(entries) <= EXACT_MAX_ENTRIES or entries.vectors.is_cuda
            return build_index(entries, "exact" if small else "approximate", queries)
        case "exact":
            return ScanIndex(entries) if entries.vectors.is_cuda else ExactIndex(entries)
        case "approximate":
            return ApproximateIndex(entries, queries=queries)
    raise UsageError(f"index must be 'auto', 'exact', 'approximate' or 'milvus', not {how!r}")


def on_cpu(index: Index | None, entries: Entries, how: How, queries: Tensor | None) -> Index:
    """Return an index over these entries for a CPU, building a new one if this one needs a GPU."""
    if index is not None and not entries.vectors.is_cuda:
        return index
    return build_index(entries.to(CPU), how, None if queries is None else queries.cpu())
