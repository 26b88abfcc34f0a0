"""Sets of items that go together (outfits): leave-one-out points and fill-in-the-blank questions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from mufin.data.formats.files import Part
from mufin.data.formats.schema import STRING, flatten
from mufin.data.items import Items
from mufin.data.split import Split, find_rows, sparse


@dataclass(frozen=True)
class Questions:
    """Fill-in-the-blank questions over item rows."""

    query: list[np.ndarray]  # the given items, one array per question
    choices: np.ndarray  # (q, c) item rows
    answer: np.ndarray  # (q,) the column of the right choice

    def __len__(self) -> int:
        return len(self.answer)


def read_sets(part: Part, items: Items) -> list[np.ndarray]:
    """Read the sets of two or more different items, each as item rows in the order of the file."""
    offsets, flat = flatten(part.table().column("items"))
    rows = find_rows(flat, items, part, "item", offsets)
    groups = [_distinct(rows[start:stop]) for start, stop in pairwise(offsets)]
    return [group for group in groups if len(group) > 1]


def read_blanks(part: Part, items: Items, seed: int) -> list[int]:
    """Return the item row to leave out of each set of `read_sets`: its `blank`, or a random one."""
    table = part.table()
    offsets, flat = flatten(table.column("items"))
    rows = items.rows(flat)
    named = table.column("blank") if "blank" in table.column_names else pa.nulls(len(table), STRING)
    blanks, rng = items.rows(named), np.random.default_rng(seed)
    left_out = []
    for number, (start, stop) in enumerate(pairwise(offsets)):
        group = _distinct(rows[start:stop])
        if named[number].is_valid and blanks[number] not in group:
            raise part.error(
                f"blank {named[number].as_py()!r} is not an item of its set; name one of the set", number
            )
        if len(group) > 1:
            drawn = int(rng.choice(group))
            left_out.append(int(blanks[number]) if named[number].is_valid else drawn)
    return left_out


def leave_one_out(
    groups: list[np.ndarray], left_out: list[np.ndarray], own_label: np.ndarray, width: int
) -> Split:
    """Make one point per item left out of a set: the others are its members, that item is its label.

    `own_label` (items,) is the label row of an item, −1 for none.
    """
    members, sizes, answers = [], [], []
    for group, items in zip(groups, left_out, strict=True):
        for item in items:
            members.append(group[group != item])
            sizes.append(len(group) - 1)
            answers.append(own_label[item])
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    flat = np.concatenate([np.zeros(0, np.int64), *members])
    relevance = sparse(np.arange(len(answers) + 1), np.asarray(answers, np.int64), width)
    exclude = sparse(offsets, own_label[flat], width)
    return Split(offsets, flat, relevance, exclude)


def read_questions(part: Part, items: Items) -> Questions:
    """Read questions from a table of `query`, `choices` and `answer`."""
    table = part.table()
    starts, flat = flatten(table.column("query"))
    queries = find_rows(flat, items, part, "item", starts)
    offsets, flat = flatten(table.column("choices"))
    choices = find_rows(flat, items, part, "item", offsets)
    counts = np.diff(offsets)
    width = int(counts[0]) if len(counts) else 0
    uneven = np.flatnonzero(counts != width)
    if len(uneven):
        raise part.error(
            f"{counts[uneven[0]]} choices, but {width} in the first question; make them equal",
            int(uneven[0]),
        )
    answer = table.column("answer").fill_null(-1).to_numpy()
    wrong = np.flatnonzero((answer < 0) | (answer >= width))
    if len(wrong):
        raise part.error(
            f"answer {answer[wrong[0]]} is not an index of {width} choices; count from 0", int(wrong[0])
        )
    query = [queries[start:stop] for start, stop in pairwise(starts)]
    return Questions(query, choices.reshape(len(counts), width), np.asarray(answer, np.int64))


def _distinct(rows: np.ndarray) -> np.ndarray:
    """Drop repetitions; keep the order of first appearance."""
    _, first = np.unique(rows, return_index=True)
    return np.asarray(rows[np.sort(first)])
