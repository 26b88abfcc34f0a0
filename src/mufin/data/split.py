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

SHOWN = 3  # unknown ids named in a message


@dataclass(frozen=True)
class Split:
    """Datapoints and their relevant labels; a point is one item, or several whose descriptors are united."""

    offsets: np.ndarray  # (n + 1,) int64: point i is members[offsets[i] : offsets[i + 1]]
    members: np.ndarray  # item rows, int64
    relevance: csr_matrix  # (n, L) bool, without the excluded pairs
    exclude: csr_matrix  # (n, L) bool: labels never shown for the point, itself and the filter pairs

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, points: np.ndarray) -> Split:
        """These datapoints, in this order."""
        points = np.asarray(points, np.int64)
        starts, counts = self.offsets[points], np.diff(self.offsets)[points]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        index = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        return Split(offsets, self.members[index], self.relevance[points], self.exclude[points])


def make_split(offsets: np.ndarray, members: np.ndarray, relevance: csr_matrix, hidden: csr_matrix) -> Split:
    """A split whose excluded labels are those hidden for any member: E = M H, relevance = R ∖ E.

    `hidden` (items, L) holds the label that an item is itself, and its filter pairs.
    """
    shape = (len(offsets) - 1, hidden.shape[0])
    if (np.diff(offsets) == 1).all():  # one item a point
        exclude = csr_matrix(hidden[members])
    else:
        membership = csr_matrix((np.ones(len(members), bool), members, offsets), shape=shape)
        exclude = csr_matrix(membership @ hidden)
    relevance = csr_matrix(relevance > exclude) if exclude.nnz else relevance
    return Split(offsets, members, relevance, exclude)


def read_split(part: Part, items: Items, labels: Items, hidden: csr_matrix) -> Split:
    """The split in a file of `id` and `labels`."""
    table = part.table()
    members = known_rows(table.column("id"), items, part, "item")
    offsets, flat = flatten(table.column("labels"))
    del table
    columns = known_rows(flat, labels, part, "label", offsets)
    relevance = sparse(offsets, columns, len(labels))
    return make_split(np.arange(len(members) + 1), members, relevance, hidden)


def sparse(offsets: np.ndarray, columns: np.ndarray, width: int) -> csr_matrix:
    """A boolean (n, width) matrix with these columns in each row; a pair given twice counts once."""
    shape = (len(offsets) - 1, width)
    matrix = csr_matrix((np.ones(len(columns), bool), columns.astype(np.int32), offsets), shape=shape)
    matrix.sum_duplicates()
    return matrix


def hidden_pairs(items: Items, labels: Items, own: np.ndarray, pairs: Part | None) -> csr_matrix:
    """(items, L) bool: the label an item is itself (`own`, −1 for none) and its filter pairs."""
    rows = np.flatnonzero(own >= 0)
    columns = own[rows]
    if pairs is not None:
        table = pairs.table()
        rows = np.append(rows, known_rows(table.column("id"), items, pairs, "item"))
        columns = np.append(columns, known_rows(table.column("label"), labels, pairs, "label"))
    shape = (len(items), len(labels))
    return csr_matrix(csr_matrix((np.ones(len(rows), bool), (rows, columns)), shape=shape))


def known_rows(
    ids: pa.ChunkedArray, among: Items, part: Part, what: str, offsets: np.ndarray | None = None
) -> np.ndarray:
    """Rows of ids that must all exist; `offsets` gives the file's row of each id when several share one."""
    rows = among.rows(ids)
    unknown = np.flatnonzero(rows < 0)
    if len(unknown) == 0:
        return rows
    raise unknown_ids(ids, unknown, part, what, offsets)


def unknown_ids(
    ids: pa.ChunkedArray, unknown: np.ndarray, part: Part, what: str, offsets: np.ndarray | None
) -> CatalogueError:
    """The error that names the first few unknown ids and where the first one stands."""
    first = int(unknown[0])
    row = first if offsets is None else int(np.searchsorted(offsets, first, side="right")) - 1
    names = ", ".join(repr(ids[int(i)].as_py()) for i in unknown[:SHOWN])
    more = f" and {len(unknown) - SHOWN:,} more" if len(unknown) > SHOWN else ""
    folder = "FOLDER" if part.path is None else str(part.path.parent)
    return part.error(f"unknown {what} id {names}{more}; `mufin check {folder}` lists them all", row)
