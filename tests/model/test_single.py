"""A single query on a GPU is ranked without waiting for it: here the same code runs on a CPU, watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mufin import Catalogue, Config, Item, Mufin, fit
from mufin.data.items import Items
from mufin.encode import rows
from mufin.model import mufin as model_module
from mufin.model.hits import Ranked
from mufin.model.single import RECORD_AFTER, SingleQueries
from mufin.retrieve import exact_gpu, lists, postings
from mufin.retrieve.exact_gpu import ScanIndex
from mufin.runtime import recorded
from mufin.runtime.recorded import NotRecordable, holds, pads

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "is_nonzero", "lift_fresh"}


class NoWaiting(TorchDispatchMode):
    """Fail where an operation would wait for a GPU, because its result or its shape must be known."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        by_mask = name.startswith("index") and any(
            isinstance(each, Tensor) and each.dtype == torch.bool
            for each in (args[1] if isinstance(args[1], list | tuple) else [])
        )
        counted = name == "repeat_interleave" and kwargs.get("output_size") is None
        assert name not in WAITING, name
        assert not by_mask, name
        assert not counted, name
        return func(*args, **kwargs)


@pytest.fixture(scope="module")
def model(shop: Catalogue, tiny_config: Config) -> Mufin:
    changes = ["memory.neighbours=5", "rank.beta=learnt", "text.words=true", "memory.title_labels=true"]
    made = fit(shop, tiny_config.override(changes), quiet=True)
    made.index = ScanIndex(made.index.entries)
    made.signals = tuple(
        signal.with_index(ScanIndex(signal.entries)) if signal.name == "memory" else signal  # type: ignore[attr-defined]  # Memory
        for signal in made.signals
    )
    return made


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (recorded, model_module, exact_gpu, lists, postings, rows):
        monkeypatch.setattr(module, "waits", lambda tensor: True)


def queries(shop: Catalogue) -> list[Item]:
    return [*shop.items[:8], Item(texts=["a red desk"]), Item(texts=["qwertz"])]


@pytest.mark.usefixtures("like_a_gpu")
def test_one_query_gets_what_it_gets_in_a_batch(model: Mufin, shop: Catalogue) -> None:
    items = queries(shop)
    together = model.recommend(items, k=5)
    single = SingleQueries(model)
    single.asked = RECORD_AFTER
    for item, expected in zip(items, together, strict=True):
        ranked = single.rank(model.query(model.features(Items.of([item]))), 5)
        assert ranked is not None
        found = model.hits(ranked)[0]
        assert [hit.label for hit in found] == [hit.label for hit in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.probability == pytest.approx(other.probability, abs=1e-4)
            assert one.parts == pytest.approx(other.parts, abs=1e-4)


@pytest.mark.usefixtures("like_a_gpu")
def test_a_recording_never_waits(model: Mufin, shop: Catalogue) -> None:
    query = model.query(model.features(Items.of([shop.items[0]])))
    single = SingleQueries(model)
    single.asked = RECORD_AFTER
    wanted = single.rank(query, 5)  # computes what is cached
    conditions: list[Tensor] = []
    token = recorded._conditions.set(conditions)
    try:
        with torch.no_grad(), NoWaiting():
            found = single.rank(query, 5)
    finally:
        recorded._conditions.reset(token)
    assert isinstance(found, Ranked)
    assert isinstance(wanted, Ranked)
    assert torch.equal(found.labels, wanted.labels)
    assert len(conditions) == 2  # of the searches among labels and among points
    assert all(map(bool, conditions))


@pytest.mark.usefixtures("like_a_gpu")
def test_the_first_queries_are_not_worth_a_recording_and_a_changed_model_needs_a_new_one(
    model: Mufin, shop: Catalogue
) -> None:
    query = model.query(model.features(Items.of([shop.items[0]])))
    single = SingleQueries(model)
    assert [single.rank(query, 5) is None for _ in range(RECORD_AFTER + 1)] == [True, True, False]
    assert single.fits(model)
    model.single = single
    assert SingleQueries(model).model.single is None  # no chain of parts that were replaced
    model.single, before = None, model.labels
    try:
        model.remove_labels(model.recommend(shop.items[0], k=1)[0].label)
        assert not single.fits(model)
    finally:
        model.labels = before


def test_what_cannot_be_padded_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not pads(torch.zeros(1), 1)  # nothing waits on a CPU
    assert not holds(torch.tensor(False))
    monkeypatch.setattr(recorded, "waits", lambda tensor: True)
    assert pads(torch.zeros(1), recorded.MAX_PADDED)
    assert not pads(torch.zeros(1), recorded.MAX_PADDED + 1)
    token = recorded._conditions.set([])
    try:
        assert holds(torch.tensor(False))  # checked after the call
        with pytest.raises(NotRecordable):
            pads(torch.zeros(1), recorded.MAX_PADDED + 1)
    finally:
        recorded._conditions.reset(token)
