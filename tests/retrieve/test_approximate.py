from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import normalize

from mufin.errors import ModelError
from mufin.retrieve import faiss_index as codes
from mufin.retrieve.approximate import ApproximateIndex, label_recall
from mufin.retrieve.build import build_index
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex

World = Callable[..., Entries]


def clustered(n_labels: int, width: int = 48) -> tuple[Entries, Tensor]:
    """Labels with one or two entries around 200 centres, and queries around the same centres."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(200, width, generator=generator)

    def near(which: Tensor) -> Tensor:
        return normalize(centres[which] + 0.7 * torch.randn(len(which), width, generator=generator), dim=1)

    labels = torch.cat([torch.arange(n_labels), torch.arange(0, n_labels, 2)]).sort().values
    topic = torch.randint(200, (n_labels,), generator=generator)
    queries = near(torch.randint(200, (100,), generator=generator))
    return Entries(near(topic[labels]), labels, n_labels), queries


@pytest.fixture(scope="module", params=["graph", "lists"])
def built(request: pytest.FixtureRequest) -> tuple[ApproximateIndex, Tensor]:
    entries, queries = clustered(20_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "GRAPH_MAX_ENTRIES", 10**6 if request.param == "graph" else 0)
        return ApproximateIndex(entries), queries


def test_recall(built: tuple[ApproximateIndex, Tensor]) -> None:
    index, queries = built
    found, truth = index.search(queries, 100), index.exact.search(queries, 100)
    assert label_recall(found.labels, truth.labels) >= 0.97
    for row in range(len(queries)):
        assert len(set(found.labels[row].tolist())) == 100
    assert (found.similarity.diff(dim=1) <= 0).all()
    assert (found.similarity <= truth.similarity + 1e-6).all()


def test_exclusions_and_wide_or_selective_filters(built: tuple[ApproximateIndex, Tensor]) -> None:
    index, queries = built
    first = index.search(queries, 50).labels
    rows = np.repeat(np.arange(len(queries)), 50)
    exclude = csr_matrix((np.ones(len(rows), bool), (rows, first.flatten().numpy())), (len(queries), 20_000))
    for allowed in (None, torch.arange(20_000) % 10 != 0, torch.arange(20_000) % 100 == 0):
        found = index.search(queries, 50, exclude, allowed)
        truth = index.exact.search(queries, 50, exclude, allowed)
        assert label_recall(found.labels, truth.labels) >= 0.97
        for row in range(len(queries)):
            assert not set(found.labels[row].tolist()) & set(first[row].tolist())
        assert allowed is None or allowed[found.labels].all()


def test_batch_equals_single(built: tuple[ApproximateIndex, Tensor]) -> None:
    index, queries = built
    batch = index.search(queries, 20)
    for row in range(20):
        single = index.search(queries[row : row + 1], 20)
        assert torch.equal(single.labels[0], batch.labels[row])
        torch.testing.assert_close(single.similarity[0], batch.similarity[row], atol=1e-6, rtol=0)


def test_save_and_load_then_add(built: tuple[ApproximateIndex, Tensor], tmp_path: Path) -> None:
    index, queries = built
    index.save(tmp_path / "index")
    loaded = ApproximateIndex.load(tmp_path / "index", index.entries)
    before = index.search(queries, 30)
    after = loaded.search(queries, 30)
    assert torch.equal(before.labels, after.labels)
    assert torch.equal(before.similarity, after.similarity)
    loaded = loaded.added(queries, torch.arange(20_000, 20_100))
    loaded = loaded.added(queries[:1], torch.tensor([20_100]))
    assert loaded.n_labels == 20_101
    assert loaded.search(queries, 1).labels[:, 0].tolist() == list(range(20_000, 20_100))
    assert loaded.search(queries[:1], 2).labels[0].tolist() == [20_000, 20_100]
    assert torch.equal(index.search(queries, 30).labels, before.labels)


def test_a_damaged_or_foreign_file_is_told(built: tuple[ApproximateIndex, Tensor], tmp_path: Path) -> None:
    index, _ = built
    index.save(tmp_path / "index")
    (tmp_path / "cut").write_bytes((tmp_path / "index").read_bytes()[:3000])
    with pytest.raises(ModelError, match="rebuild the index"):
        ApproximateIndex.load(tmp_path / "cut", index.entries)
    with pytest.raises(ModelError, match="rebuild the index"):
        ApproximateIndex.load(tmp_path / "nowhere", index.entries)
    with pytest.raises(ModelError, match=r"but the entries are"):
        ApproximateIndex.load(tmp_path / "index", clustered(30)[0])


def test_k_unique_labels_when_one_owns_all_that_is_near() -> None:
    generator = torch.Generator().manual_seed(0)
    query = normalize(torch.randn(1, 32, generator=generator), dim=1)
    near = normalize(query + 0.05 * torch.randn(8000, 32, generator=generator), dim=1)
    far = normalize(torch.randn(4000, 32, generator=generator), dim=1)
    labels = torch.cat([torch.zeros(8000), torch.arange(1, 4001)]).long()
    index = ApproximateIndex(Entries(torch.cat([near, far]), labels, 4001))
    found, truth = index.search(query, 100), index.exact.search(query, 100)
    assert torch.equal(found.labels, truth.labels)
    assert len(set(found.labels[0].tolist())) == 100


def test_everything_excluded_gives_nothing(built: tuple[ApproximateIndex, Tensor]) -> None:
    index, queries = built
    everything = csr_matrix(np.ones((3, 20_000), dtype=bool))
    assert (index.search(queries[:3], 10, exclude=everything).labels == -1).all()


def test_few_or_no_entries_are_searched_exactly(world: World) -> None:
    for n_labels in (1, 40):
        entries = world(n_labels, 1)
        found = ApproximateIndex(entries).search(entries.vectors, 50)
        assert torch.equal(found.labels, ExactIndex(entries).search(entries.vectors, 50).labels)
    nothing = Entries(torch.empty(0, 8), torch.empty(0, dtype=torch.int64), 3)
    assert (ApproximateIndex(nothing).search(torch.ones(1, 8), 2).labels == -1).all()


def test_labels_are_added_to_an_index_over_nothing(world: World) -> None:
    entries = world(3, 1)
    nothing = Entries(torch.empty(0, 16), torch.empty(0, dtype=torch.int64), 2)
    grown = ApproximateIndex(nothing).added(entries.vectors, entries.labels + 2)
    assert grown.search(entries.vectors, 1).labels[:, 0].tolist() == [2, 3, 4]


def test_auto_is_exact_for_few_entries(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = world(60, 1)
    assert isinstance(build_index(entries), ExactIndex)
    assert isinstance(build_index(entries, "approximate"), ApproximateIndex)
    monkeypatch.setattr("mufin.retrieve.build.EXACT_MAX_ENTRIES", 10)
    assert isinstance(build_index(entries), ApproximateIndex)


def test_similarities_of_given_labels_are_those_of_all_their_entries() -> None:
    generator = torch.Generator().manual_seed(0)
    owner = torch.randint(60, (400,), generator=generator).sort().values
    owner = owner[owner != 7]  # a label without entries
    vectors = normalize(torch.randn(len(owner), 16, generator=generator), dim=1)
    index = ApproximateIndex(Entries(vectors, owner, 60))
    queries = normalize(torch.randn(3, 16, generator=generator), dim=1)
    labels = torch.tensor([[3, 59, -1, 0], [7, -1, -1, -1], [12, 3, 7, 12]])
    found = index.of_labels(queries, labels)
    for b, k in product(range(3), range(4)):
        own = owner == labels[b, k]
        best = (vectors[own] @ queries[b]).max() if own.any() else torch.tensor(-torch.inf)
        torch.testing.assert_close(found[b, k], best)
    grown = index.added(vectors[:2], torch.tensor([60, 60]))
    torch.testing.assert_close(
        grown.of_labels(queries, torch.full((3, 1), 60))[:, 0], (queries @ vectors[:2].T).amax(1)
    )
    assert grown.of_labels(queries, torch.full((3, 2), -1)).isinf().all()
