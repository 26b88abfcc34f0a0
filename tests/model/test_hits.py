"""Test hits that are built in batches, with parts and evidence computed on access."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from dataclasses import asdict, replace

import pytest
import torch

from mufin.errors import UsageError
from mufin.model.hits import Hit, HitLists, Hits, Ranked

RANKED = Ranked(
    torch.tensor([[4, 2], [2, -1]]),
    torch.tensor([[2.0, 1.0], [0.5, -torch.inf]]),
    torch.tensor([[0.75, 0.5], [0.25, 0.0]]),
    torch.arange(8.0).view(2, 2, 2),
    torch.arange(12.0).view(2, 2, 3),
)
NAMES = {4: ("four", "a table"), 2: ("two", "")}


def made() -> list[list[Hit]]:
    return RANKED.hits(NAMES, ["similarity", "memory"], ["similarity", "classifier", "log memory"])


def test_hits_have_all_that_was_ranked() -> None:
    (first, second), (third,) = made()
    assert first == Hit(
        "four", 2.0, 0.75, {"similarity": 0.0, "memory": 1.0},
        {"similarity": 0.0, "classifier": 1.0, "log memory": 2.0}, "a table",
    )  # fmt: skip
    assert second.parts == {"similarity": 2, "memory": 3}
    assert third.evidence == {"similarity": 6, "classifier": 7, "log memory": 8}
    assert (third.similarity, third.classifier, third.memory) == (6, 7, 0)
    assert Ranked.empty(2, torch.device("cpu")).hits({}, [], []) == [[], []]


def test_a_hit_of_many_is_like_one_made_alone() -> None:
    for hit in (hit for hits in made() for hit in hits):
        fields = hit.as_dict()
        assert type(fields["parts"]) is type(fields["evidence"]) is dict
        assert json.loads(json.dumps(fields)) == asdict(hit) == fields
        alone = Hit(**fields)
        for other in (pickle.loads(pickle.dumps(hit)), copy.copy(hit), copy.deepcopy(hit), replace(hit)):
            assert other == hit == alone
            assert "_named_rows" not in vars(other)  # holds no numbers of other hits
        assert repr(hit) == repr(alone)
        assert replace(hit, score=1.0).parts == hit.parts
        with pytest.raises(AttributeError, match="probability"):
            _ = hit.probabilty  # type: ignore[attr-defined]
    assert not Hit("a", 0.0, 0.0).parts


# -- many hits at once --------------------------------------------------------------------------------------


def test_hits_are_a_list_that_becomes_a_frame() -> None:
    first, second = (Hits(hits) for hits in made())
    assert isinstance(first, list)
    assert first == made()[0]
    frame = first.to_frame()
    columns = ["rank", "label", "text", "probability", "score", "similarity", "memory"]
    assert frame.columns.tolist() == columns
    assert frame.loc[1].tolist() == [2, "two", "", 0.5, 1.0, 2.0, 3.0]
    both = HitLists([first, second], ["a", ""]).to_frame()
    assert both.columns.tolist() == ["item", *columns]
    assert both["item"].tolist() == ["a", "a", 1]
    assert Hits().to_frame().empty
    assert HitLists().to_frame().empty
    assert first.at_least(0.6) == first[:1]
    for hits in (first, HitLists([first, second], ["a", ""])):
        again = pickle.loads(pickle.dumps(hits))
        assert again == copy.copy(hits) == hits
        assert (type(again), repr(again)) == (type(hits), repr(hits))


def test_a_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        Hits(made()[0]).to_frame()


def test_hits_print_one_line_each() -> None:
    first, second = (Hits(hits) for hits in made())
    assert repr(first) == " 75%  four  a table\n 50%  two"
    assert repr(HitLists([first, second, Hits()], ["a"])) == "0: four, two\n1: two\n2: no hits"
    assert repr(HitLists([first], ["a"])) == "a: four, two"
    assert str(Hit("desks", 0.9, 0.75, text="desks")) == " 75%  desks"
    assert repr(Hits()) == "no hits"
    assert repr(Hits([Hit("a", 0, 0)] * 99)).endswith("… and 89 more")
    assert repr(first[0]) == "Hit('four', probability=0.750, score=2.000, text='a table')"
    assert len(repr(Hit("a", 0, 0, text="word " * 99))) < 120
