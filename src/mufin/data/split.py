"""Splits of a catalogue: datapoints and their labels, sets of items, fill-in-the-blank questions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from mufin.data.formats.files import Part
from mufin.data.formats.schema import STRING, flatten
from mufin.data.items import Items
from mufin.errors import CatalogueError

MAX_NAMED_IDS = 3  # unknown ids named in one message


@dataclass(frozen=True)
class Split:
    """Datapoints and their relevant labels; a point is one item, or the union of several."""

    offsets: np.ndarray  # (n + 1,) int64: point i is members[offsets[i] : offsets[i + 1]]
    members: np.ndarray  # item rows, int64
    relevance: csr_matrix  # (n, L) bool, without the excluded pairs
    exclude: csr_matrix  # (n, L) bool: labels never predicted for the point: itself and its filter pairs

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, points: np.ndarray) -> Split:
        """Select datapoints, in the given order."""
        points = np.asarray(points, np.int64)
        starts, counts = self.offsets[points], np.diff(self.offsets)[points]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return Split(offsets, self.members[index], self.relevance[points], self.exclude[points])


def make_split(
    offsets: np.ndarray, members: np.ndarray, relevance: csr_matrix, excluded: csr_matrix
) -> Split:
    """Make a split that excludes the labels excluded for any member: E = M H, relevance = R ∖ E.

    `excluded` is H (items, L): the label that an item is itself, and its filter pairs.
    """
    shape = (len(offsets) - 1, excluded.shape[0])
    if (np.diff(offsets) == 1).all():  # one item per point
        exclude = csr_matrix(excluded[members])
    else:
        membership = csr_matrix((np.ones(len(members), bool), members, offsets), shape=shape)
        exclude = csr_matrix(membership @ excluded)
    relevance = csr_matrix(relevance > exclude) if exclude.nnz else relevance
    return Split(offsets, members, relevance, exclude)


def read_split(part: Part, items: Items, labels: Items, excluded: csr_matrix) -> Split:
    """Read a split from a table of `id` and `labels`."""
    table = part.table()
    members = find_rows(table.column("id"), items, part, "item")
    offsets, flat = flatten(table.column("labels"))
    del table
    columns = find_rows(flat, labels, part, "label", offsets)
    relevance = sparse(offsets, columns, len(labels))
    return make_split(np.arange(len(members) + 1), members, relevance, excluded)


def sparse(offsets: np.ndarray, columns: np.ndarray, width: int) -> csr_matrix:
    """Return a boolean (n, width) matrix with these columns in each row; duplicates count once."""
    shape = (len(offsets) - 1, width)
    matrix = csr_matrix((np.ones(len(columns), bool), columns.astype(np.int32), offsets), shape=shape)
    matrix.sum_duplicates()
    return matrix


def excluded_pairs(items: Items, labels: Items, own_label: np.ndarray, filter: Part | None) -> csr_matrix:
    """Return (items, L) bool: the label an item is itself (`own_label`, −1 for none) and its filter pairs."""
    rows = np.flatnonzero(own_label >= 0)
    columns = own_label[rows]
    if filter is not None:
        table = filter.table()
        rows = np.append(rows, find_rows(table.column("id"), items, filter, "item"))
        columns = np.append(columns, find_rows(table.column("label"), labels, filter, "label"))
    shape = (len(items), len(labels))
    return csr_matrix(csr_matrix((np.ones(len(rows), bool), (rows, columns)), shape=shape))


def find_rows(
    ids: pa.ChunkedArray, among: Items, part: Part, what: str, offsets: np.ndarray | None = None
) -> np.ndarray:
    """Return the rows of ids, which must all exist; `offsets` are those of lists of ids, for the message."""
    rows = among.rows(ids)
    unknown = np.flatnonzero(rows < 0)
    if len(unknown) == 0:
        return rows
    raise _unknown_ids_error(ids, unknown, part, what, offsets)


def _unknown_ids_error(
    ids: pa.ChunkedArray, unknown: np.ndarray, part: Part, what: str, offsets: np.ndarray | None
) -> CatalogueError:
    """Return an error that names the first unknown ids and the place of the first."""
    first = int(unknown[0])
    row = first if offsets is None else int(np.searchsorted(offsets, first, side="right")) - 1
    names = ", ".join(repr(ids[int(i)].as_py()) for i in unknown[:MAX_NAMED_IDS])
    more = f" and {len(unknown) - MAX_NAMED_IDS:,} more" if len(unknown) > MAX_NAMED_IDS else ""
    folder = "FOLDER" if part.path is None else str(part.path.parent)
    return part.error(f"unknown {what} id {names}{more}; run `mufin check {folder}` to list all", row)


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
