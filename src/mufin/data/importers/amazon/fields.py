"""Amazon product metadata of 2014, 2018 and 2023, and MM-AmazonTitles' own files: what each calls a thing.

2014   Python literals: asin, title, imUrl, related.also_bought, categories
2018   asin, title, imageURLHighRes or imageURL, also_buy, main_cat
2023   parent_asin, title, images[].hi_res or .large, bought_together (mostly null), main_category
MM     ASIN, title, images (addresses), also_buy
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data import safe_json
from mufin.data.formats.schema import STRING, STRINGS, lists
from mufin.data.importers import lines, literal
from mufin.data.problems import BadLines
from mufin.errors import CatalogueError
from mufin.progress import Progress

Dialect = Literal["2014", "2018", "2023", "mm"]

PICTURE = pa.struct({"hi_res": STRING, "large": STRING})
FIELDS: dict[Dialect, dict[str, pa.DataType]] = {
    "2014": {
        "asin": STRING,
        "title": STRING,
        "imUrl": STRING,
        "related": pa.struct({"also_bought": STRINGS}),
        "categories": pa.list_(STRINGS),
    },
    "2018": {
        "asin": STRING,
        "title": STRING,
        "imageURL": STRINGS,
        "imageURLHighRes": STRINGS,
        "also_buy": STRINGS,
        "main_cat": STRING,
    },
    "2023": {
        "parent_asin": STRING,
        "title": STRING,
        "images": pa.list_(PICTURE),
        "bought_together": STRINGS,
        "main_category": STRING,
    },
    "mm": {"ASIN": STRING, "title": STRING, "images": STRINGS, "also_buy": STRINGS},
}
FORMS: tuple[lines.Form, ...] = ("json", "literal")
SCRIPT = "getTime"  # 2018 has rows whose title is a piece of the page's script
NO_PICTURE = "/no-img-"  # 2014 names a drawing of its own where there is no picture


def products(path: Path, bad_lines: BadLines, progress: Progress) -> Iterator[pa.Table]:
    """The products of a file: tables of `id`, `title`, `image_urls`, `category`, `also` (ids bought too)."""
    dialect, form = dialect_of(path)
    schema = pa.schema(list(FIELDS[dialect].items()))
    for table in lines.read(path, schema, bad_lines, progress, form):
        yield _products(table, dialect, bad_lines, path.name)


def dialect_of(path: Path) -> tuple[Dialect, lines.Form]:
    """Which of the files this is, from its first good line, and how its lines are written."""
    for line in lines.first_lines(path):
        for form in FORMS:
            try:
                row = safe_json.loads(literal.evaluated(line) if form == "literal" else line)
            except ValueError:
                continue
            if isinstance(row, dict):
                return _dialect(set(row), form, path), form
    raise CatalogueError("neither JSON objects nor Python literals; is this the file?", path, 1)


def _dialect(names: set[str], form: lines.Form, path: Path) -> Dialect:
    if "parent_asin" in names:
        return "2023"
    if "ASIN" in names:
        return "mm"
    if "asin" in names:
        return "2014" if form == "literal" or {"related", "imUrl", "categories"} & names else "2018"
    found = ", ".join(sorted(names)[:8])
    raise CatalogueError(f"no asin, parent_asin or ASIN in the first object (found: {found})", path)


def _products(table: pa.Table, dialect: Dialect, bad_lines: BadLines, file: str) -> pa.Table:
    """A table of one dialect in our columns; products without an id are left out."""
    match dialect:
        case "2014":
            ids, addresses = table["asin"], table["imUrl"]
            also = pc.struct_field(table["related"], "also_bought")
            category = _first(_first(table["categories"]))
        case "2018":
            ids, also, category = table["asin"], table["also_buy"], table["main_cat"]
            large = pc.fill_null(pc.greater(pc.list_value_length(table["imageURLHighRes"]), 0), False)
            addresses = pc.if_else(large, table["imageURLHighRes"], table["imageURL"])
        case "2023":
            ids, also, category = table["parent_asin"], table["bought_together"], table["main_category"]
            addresses = _addresses(table["images"])
        case "mm":
            ids, also, addresses = table["ASIN"], table["also_buy"], table["images"]
            category = pa.chunked_array([pa.nulls(len(table), STRING)])
    title = pc.utf8_trim_whitespace(table["title"])
    readable = pc.and_not(pc.not_equal(title, ""), pc.match_substring(title, SCRIPT))
    made = pa.table(
        {
            "id": ids,
            "title": pc.if_else(pc.fill_null(readable, False), title, None),
            "image_urls": _kept(addresses),
            "category": category,
            "also": _without_blanks(also),
        }
    )
    named = pc.fill_null(pc.not_equal(ids, ""), False)
    lacking = len(table) - (pc.sum(named).as_py() or 0)
    if lacking:
        bad_lines.add(file, "product without an asin; it is left out", count=lacking)
    return made.filter(named) if lacking else made


def _addresses(pictures: pa.ChunkedArray) -> pa.ChunkedArray:
    """The best address of each picture: `hi_res`, else `large`."""
    filled = pc.fill_null(pc.list_value_length(pictures), 0).to_numpy()
    flat = pc.list_flatten(pictures)
    best = pc.coalesce(pc.struct_field(flat, "hi_res"), pc.struct_field(flat, "large"))
    return lists(np.concatenate([[0], np.cumsum(filled)]), best)


def _kept(addresses: pa.ChunkedArray) -> pa.ChunkedArray:
    """The addresses that can be fetched, as lists."""
    if addresses.type == STRING:
        addresses = lists(np.arange(len(addresses) + 1), addresses)
    return _filtered(
        addresses,
        lambda flat: pc.and_not(pc.starts_with(flat, "http"), pc.match_substring(flat, NO_PICTURE)),
    )


def _without_blanks(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return _filtered(values, lambda flat: pc.not_equal(flat, ""))


def _filtered(values: pa.ChunkedArray, keep: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> pa.ChunkedArray:
    """Lists without nulls, and without the elements that `keep` says no of."""
    filled = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    flat = pc.list_flatten(values)
    good = pc.fill_null(keep(flat), False)
    offsets = np.concatenate([[0], np.cumsum(filled)])
    kept = np.concatenate([[0], np.cumsum(good.to_numpy())])
    return lists(kept[offsets], flat.filter(good))


def _first(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The first element of each list; null where there is none."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    rows = pa.array(starts, mask=lengths == 0)
    flat = pc.list_flatten(values)
    return flat.take(rows) if len(flat) else pa.chunked_array([pa.nulls(len(values), flat.type)])
