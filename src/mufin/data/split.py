"""Split: datapoints and the labels relevant to each, as sparse rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from mufin.data.formats.files import Part
from mufin.data.formats.schema import flatten
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
