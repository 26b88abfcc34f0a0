from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from mufin.errors import UsageError
from mufin.retrieve import exact
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex, products, top

World = Callable[..., Entries]
Expect = Callable[..., None]


def queries_like(entries: Entries, n: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, entries.vectors.shape[1], generator=generator), dim=1)


def random_pairs(rows: int, columns: int, share: float, seed: int = 2) -> csr_matrix:
    return csr_matrix(np.random.default_rng(seed).random((rows, columns)) < share)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("most", [1, 2, 9])
def test_against_loops(world: World, expect: Expect, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    entries = world(int(rng.integers(1, 200)), most, seed=seed)
    n = entries.n_labels
    queries, k = queries_like(entries, 5), int(rng.integers(1, 40))
    exclude = random_pairs(5, n, rng.random(), seed)
    allowed = torch.from_numpy(rng.random(n) < rng.choice([0.03, 0.3, 0.9]))
    index = ExactIndex(entries)
    for out in ((None, None), (exclude, None), (None, allowed), (exclude, allowed)):
        expect(index.search(queries, k, *out), entries, queries, k, *out)


def test_many_blocks_give_the_same(world: World, expect: Expect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SCORES_PER_BLOCK", 100)
    entries = world(300, 4)
    queries = queries_like(entries, 7)
    expect(ExactIndex(entries).search(queries, 20), entries, queries, 20)


def test_k_above_the_number_of_labels_and_a_single_label(world: World, expect: Expect) -> None:
    for n_labels in (1, 3):
        entries = world(n_labels, 1)
        queries = queries_like(entries, 2)
        expect(ExactIndex(entries).search(queries, 10), entries, queries, 10)


def test_everything_excluded_or_no_entry_gives_nothing(world: World) -> None:
    entries = world(50, 3)
    queries = queries_like(entries, 2)
    everything = csr_matrix(np.ones((2, 50), dtype=bool))
    nothing = Entries(torch.empty(0, 16), torch.empty(0, dtype=torch.int64), 5)
    for found in (
        ExactIndex(entries).search(queries, 4, exclude=everything),
        ExactIndex(entries).search(queries, 4, allowed=torch.zeros(50, dtype=torch.bool)),
        ExactIndex(nothing).search(queries, 4),
    ):
        assert (found.labels == -1).all()
        assert (found.similarity == -torch.inf).all()


def test_a_stored_false_excludes_nothing(world: World, expect: Expect) -> None:
    entries = world(10, 1)
    queries = queries_like(entries, 1)
    stored = csr_matrix((np.zeros(10, dtype=bool), np.arange(10), np.array([0, 10])), shape=(1, 10))
    expect(ExactIndex(entries).search(queries, 3, exclude=stored), entries, queries, 3)


@pytest.mark.parametrize("n_labels", [40, 1000, 3001])
def test_ties_go_to_the_lower_row(n_labels: int) -> None:
    vector = normalize(torch.randn(1, 192, generator=torch.Generator().manual_seed(0)), dim=1)
    index = ExactIndex(Entries(vector.repeat(n_labels, 1), torch.arange(n_labels), n_labels))
    queries = normalize(torch.randn(3, 192, generator=torch.Generator().manual_seed(1)), dim=1)
    assert index.search(queries, 20).labels.tolist() == [list(range(20))] * 3


def test_twins_are_next_to_each_other_in_order(world: World) -> None:
    once = world(500, 1, width=192)
    entries = Entries(once.vectors.repeat(2, 1), torch.arange(1000), 1000)  # label l + 500 is the twin of l
    labels = ExactIndex(entries).search(queries_like(entries, 50), 40).labels
    assert (labels[:, 1::2] == labels[:, ::2] + 500).all()


def test_batch_equals_single(world: World) -> None:
    entries = world(3000, 3, width=192)
    queries, index = queries_like(entries, 70), ExactIndex(entries)
    batch = index.search(queries, 50)
    for row in range(70):
        single = index.search(queries[row : row + 1], 50)
        assert torch.equal(single.labels[0], batch.labels[row])
        torch.testing.assert_close(single.similarity[0], batch.similarity[row], atol=1e-6, rtol=0)


def test_one_label_that_owns_everything_near_leaves_room_for_others() -> None:
    generator = torch.Generator().manual_seed(0)
    query = normalize(torch.randn(1, 16, generator=generator), dim=1)
    near = normalize(query + 0.01 * torch.randn(5000, 16, generator=generator), dim=1)
    far = normalize(torch.randn(50, 16, generator=generator), dim=1)
    entries = Entries(torch.cat([near, far]), torch.cat([torch.zeros(5000), torch.arange(1, 51)]).long(), 51)
    found = ExactIndex(entries).search(query, 51)
    assert sorted(found.labels[0].tolist()) == list(range(51))
    assert int(found.labels[0, 0]) == 0


def test_labels_added_later_are_found_at_once(world: World, expect: Expect) -> None:
    entries = world(120, 3)
    cuts = [70, 71, 100, 120]
    first = entries.labels < cuts[0]
    index = old = ExactIndex(Entries(entries.vectors[first], entries.labels[first], cuts[0]))
    for low, high in pairwise(cuts):
        some = (entries.labels >= low) & (entries.labels < high)
        index = index.added(entries.vectors[some], entries.labels[some])
    queries = queries_like(entries, 6)
    exclude, allowed = random_pairs(6, index.n_labels, 0.1), torch.arange(index.n_labels) % 3 == 0
    expect(index.search(queries, 30), entries, queries, 30)
    expect(index.search(queries, 30, exclude, allowed), entries, queries, 30, exclude, allowed)
    assert torch.equal(index.entries.labels, entries.labels)
    assert (old.n_labels, old.n_entries) == (cuts[0], int(first.sum())), "others may be searching the old one"


@pytest.mark.parametrize(("width", "n"), [(1, 1), (50, 7), (5000, 3), (4099, 100), (20_000, 20_000)])
def test_top_is_topk(width: int, n: int) -> None:
    scores = torch.randn(3, width, generator=torch.Generator().manual_seed(0))
    values, columns = top(scores, n)
    assert torch.equal(values, scores.topk(n, dim=1).values)
    assert torch.equal(scores.gather(1, columns), values)


def test_the_product_of_one_query_is_that_of_many() -> None:
    vectors, queries = torch.randn(3000, 24), torch.randn(2, 24)
    torch.testing.assert_close(products(queries[:1], vectors), (queries @ vectors.T)[:1], atol=1e-5, rtol=0)


def test_wrong_use_is_told(world: World) -> None:
    index, query = ExactIndex(world(10, 1)), torch.zeros(1, 16)
    with pytest.raises(UsageError, match="at least one"):
        index.search(query, 0)
    with pytest.raises(UsageError, match=r"expected \(B, 16\)"):
        index.search(torch.zeros(1, 8), 1)
    with pytest.raises(UsageError, match="NaN"):
        index.search(query * torch.nan, 1)
    with pytest.raises(UsageError, match="one row per query"):
        index.search(query, 1, exclude=csr_matrix((2, 10), dtype=bool))
    with pytest.raises(UsageError, match="one bool for each of 10"):
        index.search(query, 1, allowed=torch.ones(9, dtype=torch.bool))
    with pytest.raises(UsageError, match="new rows start at 10"):
        index.added(query, torch.tensor([9]))
