"""Checked: one table under check, which knows the line or row of whatever is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.formats import jsonl, parquet
from mufin.data.formats.schema import Kind, canonical, empty_lists, flatten, same_text
from mufin.data.items import Items
from mufin.data.paths import REMEDY, leaving
from mufin.data.report import Problem, Severity

SHOWN = 10  # places listed for each kind of problem


@dataclass
class Checked:
    """The good rows of a file; the problems go to a list shared by the whole check."""

    path: Path
    table: pa.Table
    problems: list[Problem]
    bad_lines: set[int] = field(default_factory=set)

    @property
    def file(self) -> str:
        """The name, for messages."""
        return self.path.name

    def add(
        self, severity: Severity, message: str, rows: np.ndarray, names: pa.ChunkedArray | None = None
    ) -> None:
        """A problem at each of these rows, if there are any; `names` is a column to quote from."""
        first = [int(row) for row in rows[:SHOWN]]
        details = ["" if names is None else repr(names[row].as_py()) for row in first]
        self._add(severity, message, first, details, len(rows))

    def add_told(self, severity: Severity, message: str, places: list[tuple[int, str]]) -> None:
        """A problem at each (row, what is to be said of it)."""
        shown = places[:SHOWN]
        self._add(severity, message, [row for row, _ in shown], [told for _, told in shown], len(places))

    def known(self, column: str, among: Items, what: str) -> np.ndarray:
        """Rows of the ids in a column (strings, or lists of them); the unknown are −1, and a problem."""
        values = self.table.column(column)
        owner = None
        if pa.types.is_list(values.type):
            owner, values = flatten(values)
        rows = among.rows(values)
        unknown = np.flatnonzero(rows < 0)
        at = unknown if owner is None else np.searchsorted(owner, unknown, side="right") - 1
        told = [(int(row), repr(values[int(i)].as_py())) for row, i in zip(at, unknown[:SHOWN], strict=False)]
        message = f"unknown {what} id; add the {what} or remove the id"
        self._add("error", message, [row for row, _ in told], [name for _, name in told], len(unknown))
        return rows

    def pairs(self, items: Items, labels: Items, own: bool) -> tuple[np.ndarray, np.ndarray]:
        """Check a split; the item row of each point, and the label row of each different known pair."""
        ids = self.table.column("id")
        points = self.known("id", items, "item")
        columns = self.known("labels", labels, "label")
        offsets, _ = flatten(self.table.column("labels"))
        counts = np.diff(offsets)
        self.add(
            "warning", "point without labels; nothing is learnt from it", np.flatnonzero(counts == 0), ids
        )
        _, first = np.unique(points, return_index=True)
        again = np.setdiff1d(np.flatnonzero(points >= 0), first)
        self.add("warning", "point that was already given; each counts as one of its own", again, ids)
        owners = np.repeat(np.arange(len(counts)), counts)
        known = np.flatnonzero(columns >= 0)
        keys = owners[known] * len(labels) + columns[known]
        _, first = np.unique(keys, return_index=True)
        doubled = np.unique(owners[np.delete(known, first)])
        self.add("warning", "label given twice for a point; it counts once", doubled, ids)
        if own:
            itself = np.unique(owners[known][points[owners[known]] == columns[known]])
            self.add("warning", "item that is its own label; the pair is left out", itself, ids)
        return points, columns[known[first]]

    def sets(self, items: Items) -> None:
        """Check a file of sets."""
        self.known("items", items, "item")
        offsets, members = flatten(self.table.column("items"))
        sizes = np.diff(offsets)
        self.add("warning", "set of fewer than two items; it is left out", np.flatnonzero(sizes < 2))
        if "blank" in self.table.column_names:
            blank = self.table.column("blank")
            owner = np.repeat(np.arange(len(sizes)), sizes)
            inside = np.bincount(owner[same_text(members, blank.take(owner))], minlength=len(sizes)) > 0
            odd = np.flatnonzero(blank.is_valid().to_numpy() & ~inside)
            self.add("error", "blank that is no item of its set; name one of them", odd, blank)

    def questions(self, items: Items) -> None:
        """Check a file of fill-in-the-blank questions."""
        self.known("query", items, "item")
        self.known("choices", items, "item")
        counts = np.diff(flatten(self.table.column("choices"))[0])
        answer = self.table.column("answer").fill_null(-1).to_numpy()
        odd = np.flatnonzero(counts != (counts[0] if len(counts) else 0))
        self.add("error", "another number of choices than in the first question", odd)
        wrong = np.flatnonzero((answer < 0) | (answer >= counts))
        self.add("error", "answer that is no index into its choices", wrong)

    def _add(self, severity: Severity, message: str, rows: list[int], details: list[str], count: int) -> None:
        if not count:
            return
        in_lines = self.path.suffix == ".jsonl"
        numbers = jsonl.lines_of(self.path, rows, self.bad_lines) if in_lines else [row + 1 for row in rows]
        word = "line" if in_lines else "row"
        examples = tuple(
            f"{word} {number}: {detail}" if detail else f"{word} {number}"
            for number, detail in zip(numbers, details, strict=True)
        )
        if count == 1 and details[0]:
            message = f"{message}: {details[0]}"
        line, row = (numbers[0], None) if in_lines else (None, numbers[0])
        self.problems.append(Problem(severity, message, self.file, count, line, row, examples))


def load(path: Path, kind: Kind, problems: list[Problem]) -> Checked:
    """The good rows of a file; bad lines of JSONL are noted, one problem for each thing that is wrong."""
    if path.suffix != ".jsonl":
        return _confined(Checked(path, parquet.read(path, kind), problems))
    bad: dict[str, list[int]] = defaultdict(list)
    table = jsonl.scan(path, kind, lambda message, line: bad[message].append(line))
    for message, lines in bad.items():
        examples = tuple(f"line {line}" for line in lines[:SHOWN])
        problems.append(Problem("error", message, path.name, len(lines), lines[0], None, examples))
    bad_lines = {line for lines in bad.values() for line in lines}
    return _confined(Checked(path, canonical(table, kind, path), problems, bad_lines))


def _confined(checked: Checked) -> Checked:
    """Note image paths that leave the folder, and go on without the images of these rows."""
    table = checked.table
    found = leaving(table.column("images")) if "images" in table.column_names else []
    if found:
        told = [(row, repr(path)) for row, path in found]
        checked.add_told("error", f"image path that leads out of the folder; {REMEDY}", told)
        kept = np.ones(len(table), bool)
        kept[[row for row, _ in found]] = False
        images = pc.if_else(pa.array(kept), table.column("images"), empty_lists(len(table)))
        checked.table = table.set_column(table.column_names.index("images"), "images", images)
    return checked
