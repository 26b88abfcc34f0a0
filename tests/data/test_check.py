"""check reports every problem with its place, and never raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.check_report import CheckReport, Problem
from mufin.data.item import Item

Folder = Callable[..., Path]


def found(report: CheckReport, words: str) -> Problem:
    """Return the only problem whose message contains these words."""
    (problem,) = [problem for problem in report.problems if words in problem.message]
    return problem


def test_a_good_catalogue_has_no_problem(tmp_path: Path, picture: Callable[..., bytes]) -> None:
    items = [Item("a", ["A"], [picture("red")]), Item("b", ["B", " "]), Item("c", [], [picture("blue")])]
    train = {"a": ["b", "c"], "c": ["a"]}
    Catalogue.build(items, train=train).write(tmp_path / "shop")
    report = check(tmp_path / "shop")
    assert report.usable
    assert report.problems == []
    assert (report.items, report.labels, report.texts, report.pictures) == (3, 3, 2, 2)
    assert (report.items_without_text, report.items_without_picture) == (1, 1)
    assert (report.splits["train"].points, report.splits["train"].pairs) == (2, 3)
    assert report.splits["train"].labels_per_point == 1.5
    assert report.lines()[-1] == "Usable, no problems."


def test_every_problem_is_found_with_its_line(folder: Folder, picture: Callable[..., bytes]) -> None:
    items = [
        b'{"id": "a", "title": "A", "images": ["a.png", "none.png"]}',
        b"",
        b'{"id": "b", "title": "B", "images": ["zero.png"]}',
        b'{"id": "broken',
        b'{"id": "c"}',
        b'{"id": "a", "title": "again"}',
        b'{"id": "d", "title": "' + b"x" * 20_000 + b'"}',
        b'{"id": "e", "title": "<p>E &amp; F</p>"}',
    ]
    train = [
        {"id": "a", "labels": ["b", "b", "ghost"]},
        {"id": "b", "labels": []},
        {"id": "nobody", "labels": ["a"]},
        {"id": "a", "labels": ["a"]},
    ]
    path = folder(items=b"\n".join(items), train=train, test=[{"id": "a", "labels": ["d"]}], notes=[{"x": 1}])
    (path / "a.png").write_bytes(picture())
    (path / "zero.png").touch()
    report = check(path)
    places = {
        "not JSON": ("error", "items.jsonl", 4),
        "duplicate id": ("error", "items.jsonl", 6),
        "neither text nor image": ("warning", "items.jsonl", 5),
        "longer than 10,000 characters": ("warning", "items.jsonl", 7),
        "contains HTML": ("warning", "items.jsonl", 8),
        "image file not found": ("warning", "items.jsonl", 1),
        "image cannot be read; the item": ("warning", "items.jsonl", 3),
        "unknown item id": ("error", "train.jsonl", 3),
        "unknown label id": ("error", "train.jsonl", 1),
        "without labels": ("warning", "train.jsonl", 2),
        "duplicate label": ("warning", "train.jsonl", 1),
        "more than once; each": ("warning", "train.jsonl", 4),
        "its own label": ("warning", "train.jsonl", 4),
        "also a point of": ("warning", "test.jsonl", 1),
        "have no training point": ("warning", "train.jsonl", None),
        "not a table of a catalogue": ("warning", "notes.jsonl", None),
    }
    for words, place in places.items():
        problem = found(report, words)
        assert (problem.severity, problem.file, problem.line) == place, words
    assert len(report.problems) == len(places)
    assert not report.usable
    assert json.loads(json.dumps(report.to_json()))["usable"] is False
    assert report.lines()[-1] == "Not usable: 4 errors, 12 warnings."


def test_a_long_list_is_cut_and_counted(folder: Folder) -> None:
    path = folder(
        items=[{"id": "a", "title": "A"}], train=[{"id": "a", "labels": [f"x{n}" for n in range(50)]}]
    )
    problem = found(check(path), "unknown label id")
    assert (problem.count, len(problem.examples)) == (50, 10)
    assert problem.examples[0] == "line 1: 'x0'"
    assert "           … and 40 more" in check(path).lines()


def test_without_decoding_only_missing_files_are_reported(folder: Folder) -> None:
    path = folder(items=[{"id": "a", "images": ["none.png", "zero.png"]}])
    (path / "zero.png").touch()
    assert "image file not found" in check(path, decode=False).problems[0].message
    assert len(check(path, decode=False).problems) == len(check(path).problems) - 1


def test_sets_and_questions_are_checked(folder: Folder) -> None:
    questions = [
        {"query": ["a"], "choices": ["a", "b"], "answer": 2},
        {"query": ["z"], "choices": ["a"], "answer": 0},
    ]
    path = folder(
        items=[{"id": "a", "title": "A"}, {"id": "b", "title": "B"}],
        outfits=[{"items": ["a", "b", "z"]}, {"items": ["a"]}],
        fitb=questions,
    )
    report = check(path)
    assert found(report, "fewer than two").line == 2
    assert found(report, "not an index").line == 1
    assert found(report, "number of choices differs").line == 2
    unknown = [(p.file, p.line) for p in report.problems if "unknown item id" in p.message]
    assert unknown == [("fitb.jsonl", 2), ("outfits.jsonl", 1)]
    assert (report.sets, report.questions) == ({"outfits": 2}, {"fitb": 2})


def test_missing_folders_and_tables(tmp_path: Path, folder: Folder) -> None:
    assert "no such folder" in check(tmp_path / "nowhere").lines()[-2]
    assert not check(tmp_path).usable
    report = check(folder(items=b"", train=[]))
    assert {problem.severity for problem in report.problems} == {"error"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_garbage_never_raises(tmp_path: Path, suffix: str) -> None:
    rng = np.random.default_rng(0)
    for name in ("items", "labels", "train", "filter", "other"):
        (tmp_path / f"{name}.{suffix}").write_bytes(rng.bytes(3000))
    report = check(tmp_path)
    assert not report.usable
    assert report.lines()
    (tmp_path / f"items.{suffix}").unlink()
    (tmp_path / f"items.{suffix}").mkdir()
    assert not check(tmp_path).usable


def test_both_formats_of_one_table_are_a_problem(folder: Folder) -> None:
    path = folder(items=[{"id": "a", "title": "A"}])
    (path / "items.parquet").write_bytes(b"")
    report = check(path)
    assert "remove one of the two" in report.problems[0].message
    assert report.items == 1  # of the JSONL file
