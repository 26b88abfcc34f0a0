"""Convert what callers pass as items: objects, texts, images, dictionaries, one or many, or a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from mufin.data.formats.files import is_file
from mufin.data.images import reject_url
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.errors import InputTypeError, PictureError

if TYPE_CHECKING:
    import PIL.Image

    from mufin.data.item import Pixels

    ItemLike = Item | str | Path | bytes | PIL.Image.Image | Pixels | Mapping[str, Any]

EXAMPLE = (
    'an item is a text ("oak desk"), an image (pathlib.Path("desk.jpg") or a PIL image), a dictionary '
    '({"title": "oak desk", "images": ["desk.jpg"]}) or Item(texts=["oak desk"], images=["desk.jpg"])'
)
FIELDS = {  # key of a dictionary or column of a data frame → field of an item
    "id": "id", "title": "texts", "text": "texts", "texts": "texts", "image": "images", "images": "images",
    "category": "category", "related": "related",
}  # fmt: skip
CONTENT = ("title", "text", "texts", "image", "images")


class Frame(Protocol):
    """A data frame or table that exports Arrow data: pandas, polars, pyarrow and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def as_items(value: ItemLike | Iterable[ItemLike] | Frame) -> tuple[Items, bool]:
    """Return the items, and whether the value was a single item.

    A `str` is a text and a `Path` is an image. A missing value, such as None or NaN, is an empty item.

    >>> items, single = as_items(["oak desk", {"id": "a", "title": "lamp", "category": None}])
    >>> items[1], single
    (Item('a', texts=['lamp']), False)
    """
    if isinstance(value, Items):
        return value, False
    single = _is_single(value)
    listed = [as_item(value)] if single else _many(value)
    for item in listed:
        for image in item.images:
            if isinstance(image, str | Path):
                _check_file(image)
    return Items.of(listed, stored=False), single


def as_item(value: Any, place: str = "") -> Item:
    """Return one item; `place` begins the error message if the value is not one."""
    if isinstance(value, Item):
        return value
    if isinstance(value, str):
        return Item(texts=(value,))
    if _is_row(value):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return _from_fields(value, place)
    if _is_image(value):
        return Item(images=(value,))
    if is_missing(value):
        return Item()
    raise InputTypeError(f"{place}{type(value).__name__} {_short(value)} is not an item; {EXAMPLE}")


def is_missing(value: Any) -> bool:
    """Return whether a cell is empty: None, NaN, NaT or pandas.NA."""
    if value is None:
        return True
    if isinstance(value, str | bytes | int | list | dict):
        return False
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # pandas.NA has no truth value; an array has too many
        return type(value).__name__ == "NAType"


def rows_of(frame: Any) -> Iterator[dict[str, Any]] | None:
    """Yield the rows of a data frame without missing cells; None if the value is not a data frame."""
    if isinstance(frame, pa.Table | pa.RecordBatch):
        rows = frame.to_pylist()
    elif hasattr(frame, "iter_rows") and hasattr(frame, "columns"):  # polars
        rows = frame.iter_rows(named=True)
    elif hasattr(frame, "itertuples") and hasattr(frame, "columns"):  # pandas
        rows = _pandas_rows(frame)
    elif hasattr(frame, "collect_schema"):
        raise InputTypeError("a LazyFrame has no rows yet; pass frame.collect()")
    elif hasattr(frame, "__arrow_c_stream__") and hasattr(frame, "columns"):
        rows = pa.table(frame).to_pylist()
    else:
        return None
    return ({name: cell for name, cell in row.items() if not is_missing(cell)} for row in rows)


def column_names_of(frame: Any) -> list[str]:
    """Return the names of the columns of a data frame."""
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return list(frame.schema.names)
    return [str(name) for name in frame.columns]


def _pandas_rows(frame: Any) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries; whole numbers that missing cells turned into floats become integers."""
    columns = []
    for place in range(frame.shape[1]):
        cells = frame.iloc[:, place].tolist()
        if frame.dtypes.iloc[place].kind == "f" and any(map(is_missing, cells)):
            present = [cell for cell in cells if not is_missing(cell)]
            if all(cell.is_integer() for cell in present):
                cells = [None if is_missing(cell) else int(cell) for cell in cells]
        columns.append(cells)
    names = [str(name) for name in frame.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _is_single(value: Any) -> bool:
    return isinstance(value, Item | str | Mapping) or _is_image(value) or _is_row(value)


def _is_image(value: Any) -> bool:
    """Return whether a value is one image: a path, bytes, a PIL image, or pixels (H, W, 3)."""
    if isinstance(value, Path | bytes):
        return True
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return len(value.shape) == 3 and str(value.dtype).endswith("uint8")
    return hasattr(value, "getexif")


def _is_row(value: Any) -> bool:
    """Return whether a value is a row of a pandas data frame, such as `frame.iloc[0]`."""
    index = getattr(value, "index", None)
    if not hasattr(value, "to_dict") or hasattr(value, "columns") or not isinstance(index, Iterable):
        return False
    return any(name in CONTENT for name in index)


def _many(value: Any) -> list[Item]:
    rows = rows_of(value)
    if rows is not None:
        names = column_names_of(value)
        if not any(name in CONTENT for name in names):
            raise InputTypeError(
                f"no column of the data frame is one of {', '.join(CONTENT)} (columns: {', '.join(names)}); "
                'rename one, for example frame.rename(columns={"name": "title"})'
            )
        value = ({name: cell for name, cell in row.items() if name in FIELDS} for row in rows)
    if isinstance(value, pa.Array | pa.ChunkedArray):
        value = value.to_pylist()
    if not isinstance(value, Iterable):
        raise InputTypeError(f"{type(value).__name__} {_short(value)} is not an item; {EXAMPLE}")
    return [as_item(one, f"item {number}: ") for number, one in enumerate(value)]


def _from_fields(fields: Mapping[str, Any], place: str) -> Item:
    """Return the item of a dictionary; keys are those of items.jsonl, and `text` and `image`."""
    if unknown := [str(name) for name in fields if name not in FIELDS]:
        raise InputTypeError(f"{place}unknown key {unknown[0]!r}; known keys: {', '.join(FIELDS)}")
    values: dict[str, Any] = {"texts": [], "images": []}
    for name, field in FIELDS.items():  # `title` comes first, as in a file
        cell = fields.get(name)
        if is_missing(cell):
            continue
        match field:
            case "texts":
                values["texts"] += [_text(one, place) for one in _cells(cell)]
            case "images":
                values["images"] += _cells(cell)
            case "related":
                values["related"] = [str(one) for one in _cells(cell)]
            case _:
                values[field] = str(cell)
    return Item(**values)


def _cells(cell: Any) -> list[Any]:
    """Return the values of a cell, which holds one or a list, without missing ones."""
    several = isinstance(cell, Sequence) and not isinstance(cell, str | bytes)
    if not several and hasattr(cell, "tolist") and not _is_image(cell):  # an array, or a list of polars
        cell, several = cell.tolist(), isinstance(cell.tolist(), list)
    elif hasattr(cell, "to_list"):
        cell, several = cell.to_list(), True
    return [one for one in (cell if several else [cell]) if not is_missing(one)]


def _text(value: Any, place: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise InputTypeError(f"{place}{type(value).__name__} {_short(value)} is not a text; {EXAMPLE}")


def _check_file(image: str | Path) -> None:
    """Raise a PictureError if there is no such file, so that a typo does not pass unnoticed."""
    reject_url(image)
    if not is_file(Path(image)):
        raise PictureError("no such image file; check the path", image)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
