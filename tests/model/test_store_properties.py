"""Any sequence of changes to labels, saved at any moment, is what plain Python says it should be."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mufin import Item, Mufin, load, save
from mufin.errors import UsageError
from mufin.model.store import editing_labels, save_labels

TEXT = st.text(min_size=1, max_size=10).filter(str.strip)
ID = st.sampled_from(["q-red", "q-bar", "a", "b", "Ω", "a b", "../x", "\0", "\n", "é", "e\u0301"])
STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(ID, TEXT), min_size=1, max_size=2)),
    st.tuples(st.just("remove"), st.lists(ID, min_size=1, max_size=2)),
    st.tuples(st.sampled_from(["save", "save labels", "compact", "load", "edit"]), st.just([])),
)
ASKED = [Item("1", ["red circle"]), Item("2", ["blue bar 7"]), Item("3", ["Ω"])]


@pytest.fixture(scope="module")
def saved(tiny_model: Mufin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    save(tiny_model, path)
    return path


def answers(model: Mufin) -> list[dict[str, tuple[float, float, str]]]:
    """Score, probability and text of every label that is recommended."""
    hits = model.recommend(ASKED, k=100)
    return [{hit.label: (hit.score, hit.probability, hit.text) for hit in some} for some in hits]


@given(steps=st.lists(STEP, min_size=1, max_size=7))
@settings(max_examples=12)
def test_labels_that_come_and_go(steps: list[tuple[str, list]], saved: Path) -> None:
    model = load(saved, exact=True)
    texts = {item.id: next(iter(item.texts), "") for item in model.labels.items}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        save(model, folder)
        for what, values in steps:
            match what:
                case "add":
                    added = dict(values)
                    taken = len(added) < len(values) or added.keys() & texts
                    change = [Item(id, [text]) for id, text in values]
                    if taken:
                        with pytest.raises(UsageError, match="taken"):
                            model.add_labels(change)
                    else:
                        model.add_labels(change)
                        texts |= added
                case "remove":
                    if set(values) <= texts.keys():
                        model.remove_labels(values)
                        texts = {id: text for id, text in texts.items() if id not in values}
                    else:
                        with pytest.raises(UsageError, match="no label"):
                            model.remove_labels(values)
                case "save":
                    save(model, folder)
                case "save labels":
                    save_labels(model, folder)
                case "compact":
                    model.compact()
                case "load":
                    save_labels(model, folder)
                    model = load(folder, exact=True)
                case "edit":
                    save_labels(model, folder)
                    with editing_labels(folder) as edited:
                        assert len(edited.labels) == len(texts)
                    model = load(folder, exact=True)
        now = answers(model)
        for found in now:
            assert {id: text for id, (_, _, text) in found.items()} == texts
        save(model, folder)
        assert answers(model) == answers(load(folder, exact=True))
        for before, after in zip(now, answers(model), strict=True):
            for id, (score, probability, _) in before.items():
                assert after[id][:2] == pytest.approx((score, probability), abs=1e-5)
