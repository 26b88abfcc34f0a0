"""Any catalogue that can be built is the same after it was written and read, in both formats."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.formats.schema import COLUMNS
from mufin.data.images import read_bytes
from mufin.data.item import Item
from mufin.data.split import read_sets
from mufin.errors import CatalogueError

TEXT = st.text(max_size=12)  # all of Unicode without surrogates, which UTF-8 cannot hold
IDS = st.lists(st.text(min_size=1, max_size=6), unique=True, min_size=1, max_size=6)
PNG = bytes.fromhex(  # one pixel
    "89504e470d0a1a0a0000000d4948445200000001000000010000000037"
    "6ef9240000000a4944415478016360000000020001737501180000000049454e44ae426082"
)


@st.composite
def items(draw: st.DrawFn, ids: list[str]) -> list[Item]:
    one = st.builds(
        Item,
        texts=st.lists(TEXT, max_size=3),
        images=st.lists(st.just(PNG), max_size=2),
        category=st.none() | TEXT,
        related=st.lists(TEXT, max_size=2),
    )
    return [
        Item(id, made.texts, made.images, made.category, made.related)
        for id, made in ((id, draw(one)) for id in ids)
    ]


@st.composite
def catalogues(draw: st.DrawFn) -> Catalogue:
    """Build a catalogue, with or without labels, splits, filter pairs and sets."""
    ids = draw(IDS)
    label_ids = draw(st.none() | IDS)
    known = ids if label_ids is None else label_ids
    some_ids, some_labels = st.sampled_from(ids), st.sampled_from(known)
    split = st.dictionaries(some_ids, st.lists(some_labels, max_size=4), max_size=4)
    names = st.text("abcXYZ-_", min_size=1, max_size=5).filter(str.isalpha)
    splits = draw(st.dictionaries(names.map(str.lower), split, max_size=2))
    sets = draw(st.none() | st.lists(st.lists(some_ids, max_size=4), min_size=1, max_size=3))
    return Catalogue.build(
        draw(items(ids)),
        None if label_ids is None else draw(items(label_ids)),
        filter=draw(st.lists(st.tuples(some_ids, some_labels), max_size=3)),
        sets=None if sets is None else {"outfits": sets},
        **splits,
    )


def content(catalogue: Catalogue) -> dict[str, Any]:
    """Everything that a catalogue says, in plain Python."""
    found: dict[str, Any] = {"same": catalogue.labels is catalogue.items, "filter": pairs(catalogue.filter)}
    for name, rows in (("items", catalogue.items), ("labels", catalogue.labels)):
        found[name] = [
            (i.id, i.texts, [read_bytes(image) for image in i.images], i.category, i.related) for i in rows
        ]
    for name in catalogue.splits:
        split = catalogue.split(name)
        found[f"split {name}"] = (split.members.tolist(), pairs(split.relevance), pairs(split.exclude))
    for name in catalogue.sets:
        found[f"sets {name}"] = [one.tolist() for one in read_sets(catalogue.parts[name], catalogue.items)]
    return found


def pairs(matrix: Any) -> list[list[int]]:
    return np.argwhere(matrix.toarray()).tolist()


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@given(catalogue=catalogues())
@settings(max_examples=60)
def test_written_and_read_is_the_same(form: Any, catalogue: Catalogue) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shop"
        catalogue.write(folder, form)
        assert content(Catalogue.read(folder)) == content(catalogue)
        assert [str(one) for one in check(folder).problems if one.severity == "error"] == []


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from([*COLUMNS["items"], "price"]) | TEXT, VALUES, max_size=5), max_size=4
    )
)
@settings(max_examples=100)
def test_any_json_objects_are_items_or_one_documented_error(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "items.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        report = check(Path(temporary))
        assert not [one for one in report.problems if "cannot be checked" in one.message]
        with suppress(CatalogueError):
            found = Catalogue.read(temporary).items
            assert [item.id for item in found] == [str(row["id"]) for row in rows]
