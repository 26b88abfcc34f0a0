from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.exact_gpu import GROUP, ScanIndex, group_maxima, member_scores, pack, rounded_queries
from mufin.retrieve.shortlist import Shortlist

World = Callable[..., Entries]
Expect = Callable[..., None]


def queries_like(entries: Entries, n: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, entries.vectors.shape[1], generator=generator), dim=1)


def without_help(index: ScanIndex, monkeypatch: pytest.MonkeyPatch) -> ScanIndex:
    """An index that fails where it would leave a query to the other search."""
    monkeypatch.setattr(ExactIndex, "search", lambda *_: pytest.fail("not scanned"))
    return index


@pytest.mark.parametrize(("most", "width", "seed"), [(1, 16, 0), (3, 24, 1), (9, 48, 2), (3, 100, 3)])
def test_against_loops(
    world: World, expect: Expect, monkeypatch: pytest.MonkeyPatch, most: int, width: int, seed: int
) -> None:
    entries = world(10_000 // (most + 1), most, width, seed)
    n, queries = entries.n_labels, queries_like(entries, 4, seed)
    rng = np.random.default_rng(seed)
    exclude = csr_matrix(rng.random((4, n)) < 0.002)
    allowed = torch.from_numpy(rng.random(n) < 0.9)
    index = without_help(ScanIndex(entries), monkeypatch)
    for out in ((None, None), (exclude, None), (None, allowed), (exclude, allowed)):
        expect(index.search(queries, 8, *out), entries, queries, 8, *out)


def test_wide_asks_few_allowed_and_few_entries_are_left_to_the_other_search(
    world: World, expect: Expect
) -> None:
    entries = world(900, 3)
    queries = queries_like(entries, 3)
    index = ScanIndex(entries)
    allowed = torch.zeros(entries.n_labels, dtype=torch.bool)
    allowed[::9] = True
    expect(index.search(queries, 5, None, allowed), entries, queries, 5, None, allowed)
    expect(index.search(queries, 700), entries, queries, 700)
    expect(index.search(queries, 1000), entries, queries, 1000)


def test_ties_go_to_the_lower_row_and_may_need_more_groups() -> None:
    few = normalize(torch.randn(40, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    entries = Entries(few.repeat(200, 1), torch.arange(8000), 8000)
    found = ScanIndex(entries).search(few[:3], 60)
    for row in range(3):
        assert found.labels[row].tolist() == list(range(row, 40 * 60, 40))


def test_batch_equals_single_to_the_last_bit(world: World) -> None:
    entries = world(3000, 2)
    index, queries = ScanIndex(entries), queries_like(entries, 600)
    many = index.search(queries, 10)
    for row in (0, 5, 511, 512, 599):
        one = index.search(queries[[row]], 10)
        assert torch.equal(one.labels[0], many.labels[row])
        assert torch.equal(one.similarity[0], many.similarity[row])


def test_labels_added_later_are_found_at_once(world: World, expect: Expect) -> None:
    entries, more = world(3000, 2), world(500, 2, seed=5)
    index = ScanIndex(entries)
    index = index.added(more.vectors, more.labels + 3000)
    joined = Entries(
        torch.cat([entries.vectors, more.vectors]), torch.cat([entries.labels, more.labels + 3000]), 3500
    )
    queries = queries_like(entries, 3)
    expect(index.search(queries, 9), joined, queries, 9)


def test_maxima_of_packed_entries_are_those_of_32_in_a_row(world: World) -> None:
    entries = world(777, 1, width=40)
    packed = pack(entries.vectors)
    queries, error, norm = rounded_queries(3 * queries_like(entries, 5), packed.rows.shape[1])
    centred = entries.vectors - entries.vectors.mean(0)
    rounded = centred.half().float()
    scores = queries[:, :40].float() @ rounded.T
    maxima = group_maxima(queries, packed.rows, scores=1024).T
    for group in range(777 // GROUP):
        torch.testing.assert_close(maxima[:, group], scores[:, GROUP * group :][:, :GROUP].amax(1))
    assert float((centred - rounded).norm(dim=1).max()) == pytest.approx(float(packed.error))
    assert float(rounded.norm(dim=1).max()) == pytest.approx(float(packed.norm))
    assert bool((error < 2**-11).all())
    torch.testing.assert_close(norm, torch.full((5,), 3.0))


def test_a_narrow_cone_is_searched_in_one_round(
    world: World, expect: Expect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In half precision, differences of such vectors would drown in the rounding error but for the mean."""
    spread = world(6000, 1, width=48)
    axis = normalize(torch.ones(48), dim=0)
    entries = Entries(normalize(spread.vectors + 6 * axis, dim=1), spread.labels, spread.n_labels)
    queries = normalize(queries_like(entries, 8) + 6 * axis, dim=1)
    index = without_help(ScanIndex(entries), monkeypatch)
    rounds: list[int] = []
    top_labels = index._top_labels
    monkeypatch.setattr(index, "_top_labels", lambda *given: rounds.append(given[5]) or top_labels(*given))
    expect(index.search(queries, 8), entries, queries, 8)
    assert len(rounds) == 1


def test_a_dense_cluster_beside_an_outlier_is_searched_in_the_groups_that_matter(
    world: World, expect: Expect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outlier makes the rounding error larger than the differences within the cluster."""
    spread = world(6000, 1, width=48)
    vectors = normalize(0.01 * spread.vectors + normalize(torch.ones(48), dim=0), dim=1)
    vectors[17] *= -1
    entries = Entries(vectors, spread.labels, spread.n_labels)
    queries = queries_like(entries, 8)
    index = without_help(ScanIndex(entries), monkeypatch)
    groups: list[int] = []
    top_labels = index._top_labels
    monkeypatch.setattr(index, "_top_labels", lambda *given: groups.append(given[5]) or top_labels(*given))
    expect(index.search(queries, 8), entries, queries, 8)
    assert 1 < len(groups) <= 5
    assert max(groups) < 6000 // GROUP // 2


def test_the_members_of_a_group_keep_one_entry_a_label(world: World) -> None:
    entries = world(200, 6)
    queries = queries_like(entries, 2)
    groups = torch.tensor([[0, 5], [3, (len(entries) - 1) // GROUP]])
    scores = member_scores(queries, entries.vectors, entries.labels, groups)
    for row, group in ((0, 0), (0, 1), (1, 0), (1, 1)):
        start = int(groups[row, group]) * GROUP
        labels = entries.labels[start : start + GROUP]
        kept = (scores[row, group] > -torch.inf).nonzero()[:, 0]
        assert labels[kept].tolist() == labels.unique().tolist()
        for place in kept.tolist():
            own = entries.vectors[start : start + GROUP][labels == labels[place]] @ queries[row]
            assert float(scores[row, group, place]) == pytest.approx(float(own.max()), abs=1e-6)


def test_it_answers_like_the_other_search(world: World) -> None:
    entries = world(5000, 3, width=32)
    queries = queries_like(entries, 64)
    one: Shortlist = ScanIndex(entries).search(queries, 20)
    other = ExactIndex(entries).search(queries, 20)
    assert torch.equal(one.labels, other.labels)
    torch.testing.assert_close(one.similarity, other.similarity, atol=2e-7, rtol=0)
