"""The fields of Amazon product metadata: the releases of 2014, 2018 and 2023, and MM-AmazonTitles.

2014   Python literals: asin, title, imUrl, related.also_bought, categories
2018   asin, title, imageURLHighRes or imageURL, also_buy, main_cat
2023   parent_asin, title, images[].hi_res or .large, bought_together (mostly null), main_category
MM     ASIN, title, images (URLs), also_buy
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.check_report import BadLines
from mufin.data.formats import safe_json
from mufin.data.formats.schema import STRING, STRINGS, lists
from mufin.data.importers import lines
from mufin.data.importers.lines import evaluate
from mufin.errors import CatalogueError
from mufin.progress import Progress

Release = Literal["2014", "2018", "2023", "mm"]

IMAGE = pa.struct({"hi_res": STRING, "large": STRING})
FIELDS: dict[Release, dict[str, pa.DataType]] = {
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
        "images": pa.list_(IMAGE),
        "bought_together": STRINGS,
        "main_category": STRING,
    },
    "mm": {"ASIN": STRING, "title": STRING, "images": STRINGS, "also_buy": STRINGS},
}
SYNTAXES: tuple[lines.Syntax, ...] = ("json", "literal")
SCRIPT_MARKER = "getTime"  # some titles of 2018 are fragments of the page's script
PLACEHOLDER_IMAGE = "/no-img-"  # part of the URL that 2014 gives to products without an image


def products(path: Path, bad_lines: BadLines, progress: Progress) -> Iterator[pa.Table]:
    """Read the products of a file: tables of `id`, `title`, `image_urls`, `category`, `also_bought` (ids)."""
    release, syntax = detect_release(path)
    schema = pa.schema(list(FIELDS[release].items()))
    for table in lines.read(path, schema, bad_lines, progress, syntax):
        yield _normalise(table, release, bad_lines, path.name)


def detect_release(path: Path) -> tuple[Release, lines.Syntax]:
    """Detect the release of a file and the syntax of its lines, from its first good line."""
    for line in lines.first_lines(path):
        for syntax in SYNTAXES:
            try:
                row = safe_json.loads(evaluate(line) if syntax == "literal" else line)
            except ValueError:
                continue
            if isinstance(row, dict):
                return _release_of(set(row), syntax, path), syntax
    raise CatalogueError(
        "neither JSON objects nor Python literals; expected Amazon product metadata", path, 1
    )


def _release_of(names: set[str], syntax: lines.Syntax, path: Path) -> Release:
    if "parent_asin" in names:
        return "2023"
    if "ASIN" in names:
        return "mm"
    if "asin" in names:
        return "2014" if syntax == "literal" or {"related", "imUrl", "categories"} & names else "2018"
    found = ", ".join(sorted(names)[:8])
    raise CatalogueError(
        f"no asin, parent_asin or ASIN in the first object (found: {found}); is this the right file?",
        path,
    )


def _normalise(table: pa.Table, release: Release, bad_lines: BadLines, file: str) -> pa.Table:
    """Rename the columns of a release to ours; drop and count products without an id."""
    match release:
        case "2014":
            ids, urls = table["asin"], table["imUrl"]
            also_bought = pc.struct_field(table["related"], "also_bought")
            category = _first(_first(table["categories"]))
        case "2018":
            ids, also_bought, category = table["asin"], table["also_buy"], table["main_cat"]
            large = pc.fill_null(pc.greater(pc.list_value_length(table["imageURLHighRes"]), 0), False)
            urls = pc.if_else(large, table["imageURLHighRes"], table["imageURL"])
        case "2023":
            ids, category = table["parent_asin"], table["main_category"]
            also_bought = table["bought_together"]
            urls = _best_urls(table["images"])
        case "mm":
            ids, also_bought, urls = table["ASIN"], table["also_buy"], table["images"]
            category = pa.chunked_array([pa.nulls(len(table), STRING)])
    title = pc.utf8_trim_whitespace(table["title"])
    readable = pc.and_not(pc.not_equal(title, ""), pc.match_substring(title, SCRIPT_MARKER))
    made = pa.table(
        {
            "id": ids,
            "title": pc.if_else(pc.fill_null(readable, False), title, None),
            "image_urls": _fetchable(urls),
            "category": category,
            "also_bought": _filter_elements(also_bought, lambda flat: pc.not_equal(flat, "")),
        }
    )
    named = pc.fill_null(pc.not_equal(ids, ""), False)
    lacking = len(table) - (pc.sum(named).as_py() or 0)
    if lacking:
        bad_lines.add(file, "product without asin; skipped", count=lacking)
    return made.filter(named) if lacking else made


def _best_urls(images: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the best URL of each image: `hi_res`, else `large`."""
    lengths = pc.fill_null(pc.list_value_length(images), 0).to_numpy()
    flat = pc.list_flatten(images)
    best = pc.coalesce(pc.struct_field(flat, "hi_res"), pc.struct_field(flat, "large"))
    return lists(np.concatenate([[0], np.cumsum(lengths)]), best)


def _fetchable(urls: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return lists of the URLs that lead to a real image."""
    if urls.type == STRING:
        urls = lists(np.arange(len(urls) + 1), urls)
    return _filter_elements(
        urls,
        lambda flat: pc.and_not(pc.starts_with(flat, "http"), pc.match_substring(flat, PLACEHOLDER_IMAGE)),
    )


def _filter_elements(
    values: pa.ChunkedArray, keep: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> pa.ChunkedArray:
    """Keep the list elements for which `keep` is true; null lists become empty."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    flat = pc.list_flatten(values)
    good = pc.fill_null(keep(flat), False)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    kept = np.concatenate([[0], np.cumsum(good.to_numpy())])
    return lists(kept[offsets], flat.filter(good))


def _first(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the first element of each list, or null for an empty one."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    rows = pa.array(starts, mask=lengths == 0)
    flat = pc.list_flatten(values)
    return flat.take(rows) if len(flat) else pa.chunked_array([pa.nulls(len(values), flat.type)])
