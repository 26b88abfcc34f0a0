"""Read data sets of the Extreme Classification repository and the files of the released MUFIN.

    trn.json, tst.json, lbl.json (.gz)      uid, title, content?, target_ind (rows of lbl) per line; or
    raw_data/{train,test,label}.raw.txt     `uid->title` per line (released MUFIN)
    trn_X_Y.txt, tst_X_Y.txt                replaces target_ind: `N L`, then `label:1.0 label:1.0 …` per point
    filter_labels_{train,test}.txt          `point label` per line, rows counted from 0
    images/img.bin, images/{train,test,label}.img.bin.npz    see `imgbin.py`

All files list the same rows in the same order. Only the training files are required.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.check_report import BadLines, Problem, add_warning
from mufin.data.formats.files import Part
from mufin.data.formats.schema import STRING, STRINGS, lists
from mufin.data.importers import imgbin, lines
from mufin.data.importers.imported import Imported, statistics
from mufin.data.items import Items
from mufin.data.pictures import NoPictures
from mufin.errors import CatalogueError
from mufin.progress import QUIET, Progress

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue

LINE_SCHEMA = pa.schema(
    {"uid": STRING, "title": STRING, "content": STRING, "target_ind": pa.list_(pa.int64())}
)
LONG_NAMES = {"trn": "train", "tst": "test", "lbl": "label"}


@dataclass
class XcTable:
    """The training points, the test points or the labels."""

    path: Path
    items: Items
    targets: tuple[np.ndarray, np.ndarray] | None  # offsets (n + 1,) and label rows, for points


def read_xc(make: type[Catalogue], folder: Path, progress: Progress = QUIET) -> Catalogue:
    """Read a folder of the repository; `catalogue.imported` lists the problems."""
    problems: list[Problem] = []
    labels = _read_table(folder, "lbl", problems, progress)
    splits = {"train": _read_table(folder, "trn", problems, progress)}
    if _find_file(folder, "tst") is not None:
        splits["test"] = _read_table(folder, "tst", problems, progress)
    items = splits["train"].items
    if "test" in splits:
        items = items.concat(splits["test"].items)
    items = _with_unique_ids(items, "points", problems)
    label_items = _with_unique_ids(labels.items, "labels", problems)
    parts, start = [], 0
    filters: list[pa.Table] = []
    for name, table in splits.items():
        ids = items.ids.slice(start, len(table.items))
        start += len(table.items)
        offsets, rows = _read_targets(folder, name, table, len(label_items))
        names = label_items.ids.combine_chunks().take(pa.array(rows))
        parts.append(Part(name, "split", pa.table({"id": ids, "labels": lists(offsets, names)})))
        filters += _read_filter(folder / f"filter_labels_{name}.txt", ids, label_items.ids)
    if filters:
        parts.append(Part("filter", "filter", pa.concat_tables(filters)))
    catalogue = make(items, label_items, parts)
    pairs = sum(len(one) for one in filters)
    catalogue.imported = Imported("xc", statistics(catalogue), {"filter pairs": pairs}, problems)
    return catalogue


def _find_file(folder: Path, name: str) -> Path | None:
    """Find the file of a table: JSON lines, or the raw text of the released MUFIN."""
    raw = f"{LONG_NAMES[name]}.raw.txt"
    candidates = [f"{name}.json.gz", f"{name}.json", f"raw_data/{raw}", f"raw_data/{name}.json", raw]
    return next((folder / file for file in candidates if (folder / file).is_file()), None)


def _read_table(folder: Path, name: str, problems: list[Problem], progress: Progress) -> XcTable:
    """Read the table `trn`, `tst` or `lbl`."""
    path = _find_file(folder, name)
    if path is None:
        raise CatalogueError(f"no {name}.json, {name}.json.gz or raw_data/{LONG_NAMES[name]}.raw.txt", folder)
    if path.name.endswith(".raw.txt"):
        ids, texts = _read_raw(path)
        targets = None
    else:
        table = _read_json(path, progress)
        ids, targets = table["uid"], None
        if name != "lbl" and table["target_ind"].null_count < len(table):
            targets = _offsets_and_rows(table["target_ind"])
        texts = _texts(table)
    pictures = imgbin.find_images(folder, LONG_NAMES[name], ids, problems) or NoPictures(len(ids))
    return XcTable(path, Items(pa.table({"id": ids, "texts": texts}), pictures), targets)


def _read_json(path: Path, progress: Progress) -> pa.Table:
    """Read a file of JSON lines; a bad line is an error, since other files refer to lines by number."""
    bad_lines = BadLines()
    table = pa.concat_tables([LINE_SCHEMA.empty_table(), *lines.read(path, LINE_SCHEMA, bad_lines, progress)])
    if bad_lines.count:
        first = bad_lines.problems()[0]
        reason = first.message.removesuffix("; line skipped")
        raise CatalogueError(
            f"{reason}; fix the line, since other files refer to it by number", path, first.line
        )
    if not len(table):
        raise CatalogueError("empty; expected one object per line", path)
    if table["uid"].null_count:
        row = int(np.flatnonzero(table["uid"].is_null().to_numpy())[0])
        raise CatalogueError(f"no 'uid' in object {row + 1}; every object needs one", path)
    return table


def _texts(table: pa.Table) -> pa.ChunkedArray:
    """Return title and content as lists of texts, without blank ones."""
    columns = [pc.fill_null(pc.utf8_trim_whitespace(table[name]), "") for name in ("title", "content")]
    both = pc.binary_join_element_wise(*columns, "\0").combine_chunks()
    split = pc.split_pattern(both, "\0").cast(STRINGS)
    filled = pc.not_equal(pc.list_flatten(split), "").to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(filled)])[np.arange(len(table) + 1) * 2]
    return lists(offsets, pc.list_flatten(split).filter(pa.array(filled)))


def _read_raw(path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Read `uid->title` lines, with `_` for spaces in titles; a line without `->` is a title."""
    ids, texts = [], []
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            text = line.decode("latin-1")
        uid, arrow, title = text.partition("->")
        ids.append(uid if arrow else str(number))
        title = (title if arrow else text).replace("_", " ").strip()
        texts.append([title] if title else [])
    return pa.chunked_array([pa.array(ids, STRING)]), pa.chunked_array([pa.array(texts, STRINGS)])


def _read_targets(folder: Path, split: str, table: XcTable, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and label rows of a split, from its X_Y file or from `target_ind`."""
    path = folder / f"{'trn' if split == 'train' else 'tst'}_X_Y.txt"
    size = len(table.items)
    if path.is_file():
        offsets, rows = _read_pairs(path)
        if len(offsets) - 1 != size:
            raise CatalogueError(
                f"{len(offsets) - 1:,} points, but {table.path.name} has {size:,}; they must match", path
            )
    elif table.targets is not None:
        path, (offsets, rows) = table.path, table.targets
    else:
        raise CatalogueError(
            f"no target_ind, and no file {path.name}; one of them must give the labels", table.path
        )
    wrong = np.flatnonzero((rows < 0) | (rows >= labels))
    if len(wrong):
        point = int(np.searchsorted(offsets, wrong[0], side="right"))
        raise CatalogueError(
            f"point {point}: label {rows[wrong[0]]}, but there are {labels:,} (counted from 0)", path
        )
    return offsets, rows


def _read_pairs(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read an X_Y file: offsets (N + 1,) and label rows, end to end."""
    counts, rows = [], []
    with path.open("rb") as file:
        header = next(file, b"").split()
        for number, line in enumerate(file, start=2):
            try:
                found = [int(pair.partition(b":")[0]) for pair in line.split()]
                rows.append(np.asarray(found, np.int64))
            except (ValueError, OverflowError):
                raise CatalogueError("expected `label:1.0 label:1.0 …`", path, number) from None
            counts.append(len(found))
    if len(header) != 2 or header[0].lstrip(b"0") != (b"%d" % len(counts)).lstrip(b"0"):
        said = b" ".join(header)[:40].decode(errors="replace")
        raise CatalogueError(f"first line is {said!r}, but the file has {len(counts)} points", path, 1)
    flat = np.concatenate([np.zeros(0, np.int64), *rows])
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), flat


def _read_filter(path: Path, points: pa.ChunkedArray, labels: pa.ChunkedArray) -> Iterator[pa.Table]:
    """Yield the pairs of a filter file as a table of ids; nothing for an empty or missing file."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        pairs = np.loadtxt(path, np.int64, ndmin=2)
    except ValueError as error:
        raise CatalogueError(f"expected two row numbers per line ({error})", path) from None
    if not len(pairs):
        return
    if pairs.shape[1] != 2 or pairs.min() < 0 or (pairs >= [len(points), len(labels)]).any():
        raise CatalogueError(
            f"expected rows of {len(points):,} points and {len(labels):,} labels, from 0", path
        )
    ids, names = points.take(pa.array(pairs[:, 0])), labels.take(pa.array(pairs[:, 1]))
    yield pa.table({"id": ids, "label": names})


def _offsets_and_rows(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    rows = pc.list_flatten(column)
    return np.concatenate([[0], np.cumsum(lengths)]), np.asarray(rows.to_numpy(), np.int64)


def _with_unique_ids(items: Items, what: str, problems: list[Problem]) -> Items:
    """Append a number to each uid that occurred before."""
    ids = items.ids.to_pylist()
    seen: dict[str, int] = {}
    repeated = []
    for row, uid in enumerate(ids):
        seen[uid] = seen.get(uid, 0) + 1
        if seen[uid] > 1:
            repeated.append(uid)
            ids[row] = f"{uid}~{seen[uid]}"
    add_warning(problems, f"duplicate uid of {what}; a number is appended", what, repeated)
    return (
        Items(items.table.set_column(0, "id", pa.array(ids, STRING)), items.pictures) if repeated else items
    )
