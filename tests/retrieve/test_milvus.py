"""Search in Milvus against brute force, on the embedded engine; exact, since the worlds are small."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

pytest.importorskip("pymilvus", reason="needs the extra milvus")
pytest.importorskip("milvus_lite", reason="needs the extra milvus")

from mufin.retrieve.approximate import label_recall
from mufin.retrieve.collection import EFFORT
from mufin.retrieve.entries import Entries
from mufin.retrieve.milvus import MilvusIndex

Expect = Callable[..., None]
LABELS = 60


def _properties() -> Any:
    """The worlds of test_index_properties.py; tests are not importable modules."""
    path = Path(__file__).with_name("test_index_properties.py")
    spec = importlib.util.spec_from_file_location("index_properties", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


properties = _properties()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from milvus_lite.server_manager import server_manager_instance

    path = str(tmp_path_factory.mktemp("milvus") / "entries.db")
    yield path
    server_manager_instance.release_server(path)


@given(world=properties.worlds(), publish=st.booleans())
@settings(max_examples=6)
def test_a_collection_that_grows_is_brute_force(world: Any, publish: bool, uri: str, expect: Expect) -> None:
    index, entries = properties.grown(MilvusIndex.create(uri, "any", world.entries), world)
    if publish:
        index = index.published()
    found = index.search(world.queries, world.k, world.exclude, world.allowed)
    expect(found, entries, world.queries, world.k, world.exclude, world.allowed)


@pytest.fixture(scope="module")
def made(uri: str) -> tuple[MilvusIndex, Entries]:
    """Labels with up to 16 entries each, many of them equal."""
    generator = torch.Generator().manual_seed(0)
    owners = torch.arange(LABELS).repeat_interleave(torch.randint(0, 17, (LABELS,), generator=generator))
    rows = torch.randint(len(properties.VECTORS), (len(owners),), generator=generator)
    entries = Entries(torch.tensor(properties.VECTORS, dtype=torch.float32)[rows], owners, LABELS)
    return MilvusIndex.create(uri, "made", entries), entries


@given(
    queries=st.lists(properties.VECTOR, min_size=1, max_size=3),
    k=st.integers(1, LABELS + 5),
    seed=st.none() | st.integers(0, 2**32 - 1),
    allowed=st.none() | st.sampled_from([0.0, 0.05, 0.5, 0.9]),
)
@settings(max_examples=60)
def test_any_search_is_brute_force(
    queries: list[list[float]],
    k: int,
    seed: int | None,
    allowed: float | None,
    made: tuple[MilvusIndex, Entries],
    expect: Expect,
) -> None:
    index, entries = made
    rng = np.random.default_rng(seed or 0)
    exclude = None if seed is None else csr_matrix(rng.random((len(queries), LABELS)) < 0.1)
    mask = None if allowed is None else torch.from_numpy(rng.random(LABELS) < allowed)
    asked = torch.tensor(queries)
    expect(index.search(asked, k, exclude, mask), entries, asked, k, exclude, mask)


def test_many_entries_are_indexed_as_a_graph(
    made: tuple[MilvusIndex, Entries], uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = made[1]
    monkeypatch.setattr("mufin.retrieve.collection.EXACT_MAX_ENTRIES", len(entries) - 1)
    graph, queries = MilvusIndex.create(uri, "graph", entries), entries.vectors[:5]
    assert (graph.collection.parameters, made[0].collection.parameters) == ({"ef": EFFORT}, {})
    found, truth = (index.search(queries, 20).labels for index in (graph, made[0]))
    assert label_recall(found, truth) > 0.97
