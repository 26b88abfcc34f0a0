"""Small random worlds, and an oracle for every search, written with loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from mufin.retrieve.entries import Entries
from mufin.retrieve.shortlist import Shortlist

Expect = Callable[..., None]
World = Callable[..., Entries]


def _world(n_labels: int, most: int, width: int = 16, seed: int = 0) -> Entries:
    """Labels with 0 to most random entries each (exactly one when most is 1)."""
    generator = torch.Generator().manual_seed(seed)
    least = 1 if most == 1 else 0
    counts = torch.randint(least, most + 1, (n_labels,), generator=generator)
    vectors = torch.randn(int(counts.sum()), width, generator=generator)
    return Entries(normalize(vectors, dim=1), torch.arange(n_labels).repeat_interleave(counts), n_labels)


def _oracle(
    entries: Entries, query: Tensor, k: int, excluded: set[int], allowed: Tensor | None
) -> list[tuple[float, int]]:
    """(−a, label) of the k nearest eligible labels of one query, ties by lower row."""
    best: dict[int, float] = {}
    for vector, label in zip(entries.vectors.double().numpy(), entries.labels.tolist(), strict=True):
        if label not in excluded and (allowed is None or bool(allowed[label])):
            best[label] = max(best.get(label, -2.0), float(vector @ query.double().numpy()))
    return sorted((-a, label) for label, a in best.items())[:k]


def _expect(
    found: Shortlist,
    entries: Entries,
    queries: Tensor,
    k: int,
    exclude: csr_matrix | None = None,
    allowed: Tensor | None = None,
) -> None:
    """The shortlist is what the oracle says, −1 and −inf where the oracle has no more."""
    assert found.labels.shape == found.similarity.shape == (len(queries), k)
    assert found.labels.dtype == torch.int64
    assert found.similarity.dtype == torch.float32
    for row, query in enumerate(queries):
        excluded = set() if exclude is None else set(np.flatnonzero(exclude[[row]].toarray()[0]).tolist())
        truth = _oracle(entries, query, k, excluded, allowed)
        assert found.labels[row].tolist() == [label for _, label in truth] + [-1] * (k - len(truth))
        similarity = torch.tensor([-a for a, _ in truth] + [-torch.inf] * (k - len(truth)))
        torch.testing.assert_close(found.similarity[row], similarity, atol=1e-6, rtol=0)


@pytest.fixture
def world() -> World:
    return _world


@pytest.fixture
def expect() -> Expect:
    return _expect
