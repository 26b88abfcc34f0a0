"""Items: many items in an Arrow table; rows become `Item` objects only on access."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.decoding import REMEDY, paths_outside
from mufin.data.formats import parquet
from mufin.data.formats.files import Part
from mufin.data.formats.schema import PICTURES, STRING, STRINGS, canonical, empty_lists, flatten
from mufin.data.images import read_bytes, shareable
from mufin.data.item import Item
from mufin.data.pictures import (
    ColumnPictures,
    DecodedPictures,
    Encoded,
    JoinedPictures,
    NoPictures,
    Pictures,
    StoredPictures,
)
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.data.item import Picture

Modality = Literal["text", "image", "both"]
MAX_STRING_BYTES = (1 << 31) - 1  # in an Arrow string array with 32-bit offsets


class Items(Sequence[Item]):
    """Many items: an Arrow table (`id`, `texts`, `category`?, `related`?, …) and the images of its rows.

    >>> items = Items.of([Item("a", ["oak desk"]), Item("b", ["lamp", " "])])
    >>> items[1].id, items.rows(["b", "?"]).tolist(), items.flat_texts()[0].tolist()
    ('b', [1, -1], [0, 1, 2])
    """

    def __init__(self, table: pa.Table, pictures: Pictures) -> None:
        self.table, self.pictures = table, pictures

    @classmethod
    def of(cls, items: Iterable[Item], stored: bool = True) -> Items:
        """Make items from `Item` objects; paths stay paths if all images are paths.

        With `stored`, decoded images become PNG bytes; without, they stay as they are.
        """
        items = list(items)
        columns = {
            "id": pa.array([item.id for item in items], STRING),
            "texts": pa.array([item.texts for item in items], STRINGS),
        }
        if any(item.category is not None for item in items):
            columns["category"] = pa.array([item.category for item in items], STRING)
        if any(item.related for item in items):
            columns["related"] = pa.array([item.related for item in items], STRINGS)
        rows = [cast("tuple[Picture, ...]", item.images) for item in items]
        return cls(pa.table(columns), _pictures(rows, stored))

    @classmethod
    def from_table(cls, table: pa.Table, folder: Path | None = None) -> Items:
        """Make items from a table; image paths are relative to `folder` and must stay inside it."""
        table = canonical(table, "items")
        if "images" not in table.column_names:
            return cls(table, NoPictures(table.num_rows))
        pictures = ColumnPictures(table.column("images"), folder)
        return cls(table.drop_columns(["images"]), pictures)

    @classmethod
    def from_file(cls, table: pa.Table, path: Path) -> Items:
        """Make items from the table of this file; images too big for memory stay in the file."""
        if path.suffix == ".parquet" and parquet.keeps_pictures(path):
            return cls(table, StoredPictures(path))
        if "images" in table.column_names and (found := paths_outside(table.column("images"))):
            row, image = found[0]
            message = f"image path {image!r} leads out of the folder ({len(found):,} rows in all); {REMEDY}"
            raise Part(path.stem, "items", path).error(message, row)
        return cls.from_table(table, path.parent)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Items({len(self):,})"

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Items: ...
    def __getitem__(self, index: int | slice) -> Item | Items:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"no item {index}; there are {len(self)}")
        values = {
            name: self.table.column(name)[row].as_py()
            for name in ("id", "texts", "category", "related")
            if name in self.table.column_names
        }
        return Item(images=self.pictures.row(row), **values)

    @property
    def ids(self) -> pa.ChunkedArray:
        """Return the ids, a column of strings."""
        return self.table.column("id")

    @property
    def texts(self) -> pa.ChunkedArray:
        """Return the texts unchanged, a column of lists of strings."""
        return self.table.column("texts")

    def rows(self, ids: Sequence[str] | pa.Array | pa.ChunkedArray) -> np.ndarray:
        """Return the rows of these ids, (len(ids),) int64; −1 for an unknown id."""
        wanted = ids if isinstance(ids, pa.Array | pa.ChunkedArray) else pa.array(ids, STRING)
        wanted = wanted if wanted.type == STRING else wanted.cast(STRING)
        if len(wanted) * 8 >= len(self):
            return first_rows(wanted, self.ids)
        # For a few ids, hash these and scan our own once, instead of hashing all of our own.
        near = np.flatnonzero(pc.is_in(self.ids, value_set=wanted).to_numpy())
        found = first_rows(wanted, self.ids.take(pa.array(near)))
        return np.where(found < 0, -1, np.append(near, -1)[found])

    def take(self, rows: Sequence[int] | np.ndarray) -> Items:
        """Return these rows, in this order."""
        index = np.asarray(rows, np.int64)
        return Items(self.table.take(pa.array(index)), self.pictures.take(index))

    def concat(self, other: Items) -> Items:
        """Append other items; a column that only one side has is null on the other."""
        table = pa.concat_tables([self.table, other.table], promote_options="permissive")
        plain = isinstance(self.pictures, NoPictures) and isinstance(other.pictures, NoPictures)
        pictures = NoPictures(table.num_rows) if plain else JoinedPictures(self.pictures, other.pictures)
        return Items(canonical(table, "items"), pictures)

    def only(self, modality: Modality, lacking: Literal["empty", "keep"] = "empty") -> Items:
        """Return the items with only their texts, only their images, or both.

        Under `image`, items without images become empty; with `lacking="keep"` they keep their texts.
        """
        match modality:
            case "both":
                return self
            case "text":
                return Items(self.table, NoPictures(len(self)))
            case "image":
                place = self.table.column_names.index("texts")
                texts = empty_lists(len(self))
                if lacking == "keep":
                    texts = pc.if_else(pa.array(self.pictures.counts() > 0), texts, self.texts)
                return Items(self.table.set_column(place, "texts", texts), self.pictures)
            case _:
                raise UsageError(f"modality {modality!r} is not one of text, image, both")

    def flat_texts(self) -> tuple[np.ndarray, pa.Array]:
        """Return all texts that are not blank: offsets per item (n + 1,) int64 and the strings."""
        return self._flat_texts

    @cached_property
    def _flat_texts(self) -> tuple[np.ndarray, pa.Array]:
        offsets, flat = flatten(self.texts)
        keep = pc.not_equal(pc.utf8_trim_whitespace(flat), "")
        if not pc.all(keep, min_count=0).as_py():
            offsets = np.concatenate([[0], np.cumsum(keep.to_numpy())])[offsets].astype(np.int64)
            flat = flat.filter(keep)
        flat = flat.cast(pa.large_string()) if flat.nbytes > MAX_STRING_BYTES else flat
        return offsets, flat.combine_chunks()

    def flat_images(self) -> tuple[np.ndarray, Sequence[Encoded]]:
        """Return all images: offsets per item (n + 1,) int64 and the bytes or paths, read on access."""
        return self.pictures.offsets, self.pictures.flat()


def first_rows(wanted: pa.Array | pa.ChunkedArray, ids: pa.ChunkedArray) -> np.ndarray:
    """Return the first position of each wanted id among `ids`, −1 if there is none."""
    # Combine the chunks: if they are slices of one buffer, Arrow would reserve the whole buffer per slice.
    found = pc.index_in(wanted, value_set=ids.combine_chunks())
    return np.asarray(pc.fill_null(found, -1).to_numpy(), np.int64)


def _pictures(rows: list[tuple[Picture, ...]], stored: bool) -> Pictures:
    pictures = [picture for row in rows for picture in row]
    if not pictures:
        return NoPictures(len(rows))
    if all(isinstance(picture, str | Path) for picture in pictures):
        paths = [[str(picture) for picture in row] for row in rows]
        return ColumnPictures(pa.chunked_array([paths], STRINGS))
    if stored or all(isinstance(picture, str | Path | bytes) for picture in pictures):
        encoded = [[read_bytes(picture) for picture in row] for row in rows]
        return ColumnPictures(pa.chunked_array([encoded], PICTURES))
    return DecodedPictures([tuple(map(shareable, row)) for row in rows])


def check_ids(ids: pa.ChunkedArray, part: Part) -> None:
    """Raise an error that names the first missing or repeated id, if any."""
    if ids.null_count:
        raise part.error("missing id; every item needs one", int(np.flatnonzero(ids.is_null().to_numpy())[0]))
    repeated = np.flatnonzero(first_rows(ids, ids) != np.arange(len(ids)))
    if len(repeated):
        row = int(repeated[0])
        message = f"id {ids[row].as_py()!r} is not unique ({len(repeated):,} duplicates in all); change it"
        raise part.error(message, row)
