"""The images of many items: in memory, in a Parquet file, or a selection of other rows."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, cast, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.decoding import inside
from mufin.data.formats.parquet import explained, open_parquet
from mufin.data.formats.schema import canonical

if TYPE_CHECKING:
    import PIL.Image

Encoded = bytes | Path
ROW_GROUPS_IN_MEMORY = 3


class Pictures(ABC):
    """Rows of zero or more encoded images, as bytes or as paths."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def row(self, row: int) -> tuple[Encoded, ...]:
        """Return the images of one row."""

    @abstractmethod
    def counts(self) -> np.ndarray:
        """Return the number of images per row, (n,) int64."""

    @cached_property
    def offsets(self) -> np.ndarray:
        """Return (n + 1,) int64: row i has the images offsets[i] … offsets[i + 1] of `flat`."""
        return np.concatenate([[0], np.cumsum(self.counts())]).astype(np.int64)

    def flat(self) -> FlatPictures:
        """Return the images of all rows as one sequence, read one at a time."""
        return FlatPictures(self)

    def take(self, rows: np.ndarray) -> Pictures:
        """Return these rows, in this order, without copying images."""
        return SelectedPictures(self, rows)


class FlatPictures(Sequence[Encoded]):
    """The images of all rows as one sequence."""

    def __init__(self, pictures: Pictures) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return int(self.pictures.offsets[-1])

    @overload
    def __getitem__(self, index: int) -> Encoded: ...
    @overload
    def __getitem__(self, index: slice) -> list[Encoded]: ...
    def __getitem__(self, index: int | slice) -> Encoded | list[Encoded]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"no image {index}; there are {len(self)}")
        offsets = self.pictures.offsets
        index %= len(self)
        row = int(np.searchsorted(offsets, index, side="right")) - 1
        return self.pictures.row(row)[index - int(offsets[row])]


class NoPictures(Pictures):
    """Rows without images."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def row(self, row: int) -> tuple[Encoded, ...]:
        return ()

    def counts(self) -> np.ndarray:
        return np.zeros(self.length, np.int64)

    def take(self, rows: np.ndarray) -> Pictures:
        return NoPictures(len(rows))


class ColumnPictures(Pictures):
    """An Arrow column of lists of bytes or of paths; with a folder, paths must stay inside it."""

    def __init__(self, column: pa.ChunkedArray, folder: Path | None = None) -> None:
        self.column, self.folder = column, folder

    def __len__(self) -> int:
        return len(self.column)

    def row(self, row: int) -> tuple[Encoded, ...]:
        values = self.column[row].as_py()
        if self.folder is None:
            return tuple(value if isinstance(value, bytes) else Path(value) for value in values)
        root = self._root
        return tuple(v if isinstance(v, bytes) else inside(self.folder / v, root) for v in values)

    def counts(self) -> np.ndarray:
        return np.asarray(pc.list_value_length(self.column).to_numpy(), np.int64)

    @cached_property
    def _root(self) -> str:
        return os.path.realpath(self.folder or "")


class DecodedPictures(Pictures):
    """The images of a query, some of them decoded; catalogues hold encoded ones (`ColumnPictures`)."""

    def __init__(self, rows: Sequence[tuple[Encoded | PIL.Image.Image, ...]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, row: int) -> tuple[Encoded, ...]:
        # Only encoders read the images of a query, and they accept decoded ones.
        return cast("tuple[Encoded, ...]", self.rows[row])

    def counts(self) -> np.ndarray:
        return np.array([len(row) for row in self.rows], np.int64)


class StoredPictures(Pictures):
    """The column `images` of a Parquet file too big for memory; keeps the last few row groups read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained(path):
            # Memory-mapped, it stays readable after a newer file replaces this one.
            self.file = open_parquet(pa.memory_map(str(path)))
        metadata = self.file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.groups: OrderedDict[int, pa.ChunkedArray] = OrderedDict()
        self._lock = Lock()  # a server reads from several threads

    def __len__(self) -> int:
        return int(self.starts[-1])

    def row(self, row: int) -> tuple[Encoded, ...]:
        group = int(np.searchsorted(self.starts, row, side="right")) - 1
        return tuple(self._group(group)[row - int(self.starts[group])].as_py())

    def counts(self) -> np.ndarray:
        # The lengths cannot be read without the bytes: read everything once, one row group at a time.
        lengths = [pc.list_value_length(self._group(i)).to_numpy() for i in range(len(self.starts) - 1)]
        return np.concatenate([np.zeros(0, np.int64), *lengths]).astype(np.int64)

    def _group(self, group: int) -> pa.ChunkedArray:
        with self._lock:
            held = self.groups.get(group)
            if held is None:
                with explained(self.path):
                    table = self.file.read_row_group(group, columns=["id", "images"])
                    table.validate(full=True)
                held = canonical(table, "items", self.path).column("images")
                self.groups[group] = held
                while len(self.groups) > ROW_GROUPS_IN_MEMORY:
                    self.groups.popitem(last=False)
            else:
                self.groups.move_to_end(group)
            return held


class SelectedPictures(Pictures):
    """Selected rows of other pictures, in a given order."""

    def __init__(self, base: Pictures, rows: np.ndarray) -> None:
        self.base, self.rows = base, np.asarray(rows, np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def row(self, row: int) -> tuple[Encoded, ...]:
        return self.base.row(int(self.rows[row]))

    def counts(self) -> np.ndarray:
        return np.diff(self.base.offsets)[self.rows]

    def take(self, rows: np.ndarray) -> Pictures:
        return SelectedPictures(self.base, self.rows[rows])


class JoinedPictures(Pictures):
    """The rows of `first`, then the rows of `second`."""

    def __init__(self, first: Pictures, second: Pictures) -> None:
        self.first, self.second = first, second

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    def row(self, row: int) -> tuple[Encoded, ...]:
        split = len(self.first)
        return self.first.row(row) if row < split else self.second.row(row - split)

    def counts(self) -> np.ndarray:
        return np.concatenate([np.diff(self.first.offsets), np.diff(self.second.offsets)])
