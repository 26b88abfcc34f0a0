"""CheckedTable: one table of a catalogue under check; it reports problems with their line or row."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.check_report import MAX_EXAMPLES, Problem, Severity
from mufin.data.decoding import REMEDY, paths_outside
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.schema import Kind, canonical, empty_lists, flatten, same_text
from mufin.data.items import Items


@dataclass
class CheckedTable:
    """The readable rows of a file, and the list of problems that the whole check shares."""

    path: Path
    table: pa.Table
    problems: list[Problem]
    bad_lines: set[int] = field(default_factory=set)  # lines of JSONL that hold no row of `table`

    @property
    def file(self) -> str:
        """The file name, for messages."""
        return self.path.name

    def add(
        self, severity: Severity, message: str, rows: np.ndarray, quoted: pa.ChunkedArray | None = None
    ) -> None:
        """Report a problem at these rows, if any, with the values of the column `quoted` as details."""
        first = [int(row) for row in rows[:MAX_EXAMPLES]]
        details = ["" if quoted is None else repr(quoted[row].as_py()) for row in first]
        self._add(severity, message, list(zip(first, details, strict=True)), len(rows))

    def add_detailed(self, severity: Severity, message: str, places: list[tuple[int, str]]) -> None:
        """Report a problem at these (row, detail) places, if any."""
        self._add(severity, message, places[:MAX_EXAMPLES], len(places))

    def find_rows(self, column: str, among: Items, what: str) -> np.ndarray:
        """Return the rows of the ids in a column of strings or of lists; report unknown ids, which get −1."""
        values = self.table.column(column)
        offsets = None
        if pa.types.is_list(values.type):
            offsets, values = flatten(values)
        rows = among.rows(values)
        unknown = np.flatnonzero(rows < 0)
        owners = unknown if offsets is None else np.searchsorted(offsets, unknown, side="right") - 1
        first = zip(owners, unknown[:MAX_EXAMPLES], strict=False)
        places = [(int(owner), repr(values[int(i)].as_py())) for owner, i in first]
        self._add("error", f"unknown {what} id; add the {what} or remove the id", places, len(unknown))
        return rows

    def check_split(self, items: Items, labels: Items, own_labels: bool) -> tuple[np.ndarray, np.ndarray]:
        """Check a split; return the item row of each point and the label row of each distinct known pair."""
        ids = self.table.column("id")
        points = self.find_rows("id", items, "item")
        columns = self.find_rows("labels", labels, "label")
        offsets, _ = flatten(self.table.column("labels"))
        counts = np.diff(offsets)
        unlabelled = np.flatnonzero(counts == 0)
        self.add("warning", "point without labels; nothing is learnt from it", unlabelled, ids)
        _, first = np.unique(points, return_index=True)
        repeated = np.setdiff1d(np.flatnonzero(points >= 0), first)
        self.add(
            "warning", "item listed more than once; each occurrence is a point of its own", repeated, ids
        )
        owners = np.repeat(np.arange(len(counts)), counts)
        known = np.flatnonzero(columns >= 0)
        keys = owners[known] * len(labels) + columns[known]
        _, first = np.unique(keys, return_index=True)
        doubled = np.unique(owners[np.delete(known, first)])
        self.add("warning", "duplicate label of a point; counted once", doubled, ids)
        if own_labels:
            itself = np.unique(owners[known][points[owners[known]] == columns[known]])
            self.add("warning", "item is its own label; the pair is ignored", itself, ids)
        return points, columns[known[first]]

    def check_sets(self, items: Items) -> None:
        """Check a file of sets."""
        self.find_rows("items", items, "item")
        offsets, members = flatten(self.table.column("items"))
        sizes = np.diff(offsets)
        self.add("warning", "set of fewer than two items; ignored", np.flatnonzero(sizes < 2))
        if "blank" in self.table.column_names:
            blank = self.table.column("blank")
            owner = np.repeat(np.arange(len(sizes)), sizes)
            contained = np.bincount(owner[same_text(members, blank.take(owner))], minlength=len(sizes)) > 0
            foreign = np.flatnonzero(blank.is_valid().to_numpy() & ~contained)
            self.add("error", "blank is not an item of its set; name one of the set", foreign, blank)

    def check_questions(self, items: Items) -> None:
        """Check a file of fill-in-the-blank questions."""
        self.find_rows("query", items, "item")
        self.find_rows("choices", items, "item")
        counts = np.diff(flatten(self.table.column("choices"))[0])
        answer = self.table.column("answer").fill_null(-1).to_numpy()
        uneven = np.flatnonzero(counts != (counts[0] if len(counts) else 0))
        self.add("error", "number of choices differs from the first question; make them equal", uneven)
        wrong = np.flatnonzero((answer < 0) | (answer >= counts))
        self.add("error", "answer is not an index of a choice; count from 0", wrong)

    def _add(self, severity: Severity, message: str, places: list[tuple[int, str]], count: int) -> None:
        """Append a problem that occurs `count` times, first at these (row, detail) places."""
        if not count:
            return
        in_lines = self.path.suffix == ".jsonl"
        rows = [row for row, _ in places]
        numbers = jsonl.lines_of(self.path, rows, self.bad_lines) if in_lines else [row + 1 for row in rows]
        word = "line" if in_lines else "row"
        examples = tuple(
            f"{word} {number}: {detail}" if detail else f"{word} {number}"
            for number, (_, detail) in zip(numbers, places, strict=True)
        )
        if count == 1 and places[0][1]:
            message = f"{message}: {places[0][1]}"
        line, row = (numbers[0], None) if in_lines else (None, numbers[0])
        self.problems.append(Problem(severity, message, self.file, count, line, row, examples))


def load_table(path: Path, kind: Kind, problems: list[Problem]) -> CheckedTable:
    """Read the good rows of a file; report the bad lines of JSONL, one problem per message."""
    if path.suffix != ".jsonl":
        return _without_outside_images(CheckedTable(path, parquet.read(path, kind), problems))
    bad: dict[str, list[int]] = defaultdict(list)
    table = jsonl.scan(path, kind, lambda message, line: bad[message].append(line))
    for message, lines in bad.items():
        examples = tuple(f"line {line}" for line in lines[:MAX_EXAMPLES])
        problems.append(Problem("error", message, path.name, len(lines), lines[0], None, examples))
    bad_lines = {line for lines in bad.values() for line in lines}
    return _without_outside_images(CheckedTable(path, canonical(table, kind, path), problems, bad_lines))


def _without_outside_images(checked: CheckedTable) -> CheckedTable:
    """Report image paths that leave the folder, and drop the images of these rows."""
    table = checked.table
    found = paths_outside(table.column("images")) if "images" in table.column_names else []
    if found:
        places = [(row, repr(path)) for row, path in found]
        checked.add_detailed("error", f"image path leads out of the folder; {REMEDY}", places)
        kept = np.ones(len(table), bool)
        kept[[row for row, _ in found]] = False
        images = pc.if_else(pa.array(kept), table.column("images"), empty_lists(len(table)))
        checked.table = table.set_column(table.column_names.index("images"), "images", images)
    return checked
