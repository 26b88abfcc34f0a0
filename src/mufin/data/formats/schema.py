"""The columns of each kind of table, and the conversion of other column types to them.

items, labels   id, texts (and title), images, category, related, image_urls, and any others
split           id, labels
filter          id, label
sets            items, blank (optional)
questions       query, choices, answer
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.errors import CatalogueError

Kind = Literal["items", "split", "filter", "sets", "questions"]

STRING = pa.string()
STRINGS = pa.list_(pa.string())
PICTURES = pa.list_(pa.binary())

COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "items": {
        "id": STRING,
        "title": STRING,
        "texts": STRINGS,
        "images": STRINGS,
        "category": STRING,
        "related": STRINGS,
        "image_urls": STRINGS,
    },
    "split": {"id": STRING, "labels": STRINGS},
    "filter": {"id": STRING, "label": STRING},
    "sets": {"items": STRINGS, "blank": STRING},
    "questions": {"query": STRINGS, "choices": STRINGS, "answer": pa.int64()},
}
REQUIRED: dict[str, tuple[str, ...]] = {
    "items": ("id",),
    "split": ("id", "labels"),
    "filter": ("id", "label"),
    "sets": ("items",),
    "questions": ("query", "choices", "answer"),
}


def kind_of(name: str, columns: list[str]) -> Kind | None:
    """Determine the kind of a table from its name and columns; None if it is not part of a catalogue."""
    if name in ("items", "labels"):
        return "items"
    if name == "filter":
        return "filter"
    kinds: tuple[Kind, ...] = ("questions", "split", "sets")
    return next((kind for kind in kinds if set(REQUIRED[kind]) <= set(columns)), None)


def canonical(table: pa.Table, kind: Kind, path: Path | str | None = None) -> pa.Table:
    """Convert the columns of a kind to their types; `title` becomes the first of `texts`."""
    missing = [name for name in REQUIRED[kind] if name not in table.column_names]
    if missing:
        found = ", ".join(table.column_names) or "none"
        raise CatalogueError(f"no column {missing[0]!r} (found: {found}); a table of {kind} needs it", path)
    for name, wanted in COLUMNS[kind].items():
        if name in table.column_names:
            try:
                column = _convert(table.column(name), wanted, name)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
                found = str(table.schema.field(name).type)
                raise CatalogueError(
                    f"column {name!r} is {found}, expected {wanted}: {error}", path
                ) from None
            table = table.set_column(table.column_names.index(name), name, column)
    return _with_title(table) if kind == "items" else table


def flatten(lists: pa.ChunkedArray) -> tuple[np.ndarray, pa.ChunkedArray]:
    """Return lists without nulls as offsets (n + 1,) int64 and one column of elements."""
    lengths = pc.list_value_length(lists)
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lengths.to_numpy(), out=offsets[1:])
    return offsets, pc.list_flatten(lists)


def lists(offsets: np.ndarray, values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray:
    """Invert `flatten`: row i holds values[offsets[i] : offsets[i + 1]]."""
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pa.chunked_array([pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)])


def same_text(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Return where two columns of strings are equal; False for nulls."""
    return np.asarray(pc.fill_null(pc.equal(left, right), False).to_numpy())


def empty_lists(length: int) -> pa.ChunkedArray:
    """Return a column of `length` empty lists of strings."""
    return lists(np.zeros(length + 1, np.int64), pa.array([], STRING))


def _convert(column: pa.ChunkedArray, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not pa.types.is_list(wanted):
        return column if column.type == wanted else _to_scalars(column, wanted)
    return _to_lists(column, binary=name == "images")


def _to_scalars(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_boolean(column.type) or pa.types.is_nested(column.type):
        raise TypeError("expected one string or number per row")
    return column.cast(wanted)


def _to_lists(column: pa.ChunkedArray, binary: bool) -> pa.ChunkedArray:
    """Convert to lists of strings, or, if `binary`, of bytes that stay bytes, without nulls."""
    kind = column.type
    if pa.types.is_null(kind):
        return empty_lists(len(column))
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        valid = column.is_valid().to_numpy()  # a single value becomes a list of one
        return _to_lists(lists(np.concatenate([[0], np.cumsum(valid)]), column.drop_null()), binary)
    element = kind.value_type
    if pa.types.is_boolean(element) or pa.types.is_nested(element):
        raise TypeError("expected a list of strings per row")
    encoded = pa.types.is_binary(element) or pa.types.is_large_binary(element)
    wanted = PICTURES if binary and encoded else STRINGS
    column = column if kind.equals(wanted) else column.cast(wanted)
    if column.null_count == 0 and not any(chunk.flatten().null_count for chunk in column.chunks):
        return column
    return _without_nulls(column)


def _without_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    flat = pc.list_flatten(column)
    kept = np.concatenate([[0], np.cumsum(flat.is_valid().to_numpy())])
    return lists(kept[offsets], flat.drop_null())


def _with_title(table: pa.Table) -> pa.Table:
    """Set texts = [title] + texts and drop `title`, so that a round trip changes nothing."""
    n = table.num_rows
    texts = table.column("texts") if "texts" in table.column_names else empty_lists(n)
    if "title" not in table.column_names:
        return table if "texts" in table.column_names else table.append_column("texts", texts)
    title = table.column("title")
    table = table.drop_columns(["title"])
    texts = _prepend(title, texts)
    if "texts" in table.column_names:
        return table.set_column(table.column_names.index("texts"), "texts", texts)
    return table.append_column("texts", texts)


def _prepend(first: pa.ChunkedArray, rest: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists with row i = [first[i]] + rest[i], or rest[i] where first is null."""
    old_offsets, flat = flatten(rest)
    has_first = first.is_valid().to_numpy()
    counts = np.diff(old_offsets) + has_first
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = pa.chunked_array(first.drop_null().chunks + flat.chunks, STRING)
    order = np.empty(len(values), np.int64)
    heads = offsets[:-1][has_first]
    order[heads] = np.arange(len(heads))
    tail = np.ones(len(values), bool)
    tail[heads] = False
    order[tail] = len(heads) + np.arange(len(flat))
    return lists(offsets, values.take(pa.array(order)))
