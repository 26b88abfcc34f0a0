"""Exact search, and approximate search with all effort, against brute force over any small world.

Coordinates are multiples of a half, so that products are exact and ties are true ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from torch import Tensor

from mufin.retrieve import approximate, faiss_index
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.build import Index
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex

Expect = Callable[..., None]
VECTORS = [
    *(row for row in np.concatenate([np.eye(4), -np.eye(4)]).tolist()),
    *([a / 2, b / 2, c / 2, d / 2] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1) for d in (-1, 1)),
]
VECTOR = st.sampled_from(VECTORS)  # few unit vectors: duplicates and ties are frequent


class World(NamedTuple):
    entries: Entries
    queries: Tensor  # (B, 4)
    k: int
    exclude: csr_matrix | None
    allowed: Tensor | None  # also how removed labels are hidden
    added: list[list[list[float]]]  # entries of labels that are added later


@st.composite
def worlds(draw: st.DrawFn, most: int = 12) -> World:
    bags = draw(st.lists(st.lists(VECTOR, max_size=3), min_size=1, max_size=most))
    added = draw(st.lists(st.lists(VECTOR, min_size=1, max_size=2), max_size=2))
    queries = draw(st.lists(VECTOR, min_size=1, max_size=3))
    labels = len(bags) + len(added)
    row = st.lists(st.booleans(), min_size=labels, max_size=labels)
    exclude = draw(st.none() | st.lists(row, min_size=len(queries), max_size=len(queries)))
    allowed = draw(st.none() | row)
    return World(
        entries_of(bags),
        torch.tensor(queries),
        draw(st.integers(1, labels + 2)),
        None if exclude is None else csr_matrix(np.array(exclude, bool)),
        None if allowed is None else torch.tensor(allowed),
        added,
    )


def entries_of(bags: list[list[list[float]]], first: int = 0) -> Entries:
    flat = [vector for bag in bags for vector in bag]
    owners = [first + label for label, bag in enumerate(bags) for _ in bag]
    vectors = torch.tensor(flat, dtype=torch.float32).reshape(-1, 4)
    return Entries(vectors, torch.tensor(owners, dtype=torch.int64), first + len(bags))


def grown(index: Index, world: World) -> tuple[Index, Entries]:
    """Add the later labels one by one; return the index and all entries."""
    vectors, labels = [world.entries.vectors], [world.entries.labels]
    for number, bag in enumerate(world.added):
        new = entries_of([bag], world.entries.n_labels + number)
        index = index.added(new.vectors, new.labels)
        vectors.append(new.vectors)
        labels.append(new.labels)
    total = world.entries.n_labels + len(world.added)
    return index, Entries(torch.cat(vectors), torch.cat(labels), total)


@given(world=worlds())
@settings(max_examples=150)
def test_exact_search_is_brute_force(world: World, expect: Expect) -> None:
    index, entries = grown(ExactIndex(world.entries), world)
    found = index.search(world.queries, world.k, world.exclude, world.allowed)
    expect(found, entries, world.queries, world.k, world.exclude, world.allowed)
    for _ in range(6):  # later small batches use packed vectors
        again = index.search(world.queries, world.k, world.exclude, world.allowed)
        assert torch.equal(again.labels, found.labels)


@given(world=worlds())
@settings(max_examples=80)
def test_a_graph_searched_with_all_effort_is_brute_force(world: World, expect: Expect) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "EXACT_FETCH_DIVISOR", 1)  # few entries would be searched exactly
        patch.setattr(approximate, "MIN_ALLOWED_SHARE", 0.0)
        index, entries = grown(ApproximateIndex(world.entries), world)
        found = index.search(world.queries, world.k, world.exclude, world.allowed)
    expect(found, entries, world.queries, world.k, world.exclude, world.allowed)


@pytest.fixture(scope="module")
def lists() -> tuple[ApproximateIndex, Entries]:
    """Inverted lists of codes, of which all are scanned and all is rescored."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(400, (1000,), generator=generator).sort().values
    rows = torch.randint(len(VECTORS), (1000,), generator=generator)
    entries = Entries(torch.tensor(VECTORS, dtype=torch.float32)[rows], labels, 400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faiss_index, "GRAPH_MAX_ENTRIES", 0)
        index = ApproximateIndex(entries)
    index._set_effort(index.lists.nlist)
    return index, entries


@given(
    queries=st.lists(VECTOR, min_size=1, max_size=3),
    k=st.integers(1, 30),
    seed=st.none() | st.integers(0, 2**32 - 1),
    allowed=st.none() | st.sampled_from([0.1, 0.5, 0.9]),
)
@settings(max_examples=60)
def test_lists_scanned_in_full_are_brute_force(
    queries: list[list[float]],
    k: int,
    seed: int | None,
    allowed: float | None,
    lists: tuple[ApproximateIndex, Entries],
    expect: Expect,
) -> None:
    index, entries = lists
    rng = np.random.default_rng(seed or 0)
    exclude = None if seed is None else csr_matrix(rng.random((len(queries), 400)) < 0.05)
    mask = None if allowed is None else torch.from_numpy(rng.random(400) < allowed)
    asked = torch.tensor(queries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "EXACT_FETCH_DIVISOR", 1)
        patch.setattr(approximate, "MIN_RESCORED", 1000)
        found = index.search(asked, k, exclude, mask)
    expect(found, entries, asked, k, exclude, mask)
