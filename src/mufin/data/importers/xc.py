"""The Extreme Classification repository's files, and those of the released MUFIN.

    trn.json, tst.json, lbl.json (.gz)      uid, title, content?, target_ind (rows of lbl), one a line; or
    raw_data/{train,test,label}.raw.txt     `uid->title`, one a line (released MUFIN)
    trn_X_Y.txt, tst_X_Y.txt                instead of target_ind: `N L`, then `label:1.0 label:1.0 …` a point
    filter_labels_{train,test}.txt          `point label`, rows from 0
    images/img.bin, images/{train,test,label}.img.bin.npz    see `imgbin.py`

Rows are numbered from 0 and in the same order in every file. Only the training files are needed.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.catalogue import Catalogue
from mufin.data.formats.files import Part
from mufin.data.formats.schema import STRING, STRINGS, lists
from mufin.data.importers import imgbin, lines
from mufin.data.importers.imported import Imported, statistics
from mufin.data.items import Items
from mufin.data.pictures import NoPictures
from mufin.data.problems import BadLines, Problem, add_warning
from mufin.errors import CatalogueError
from mufin.progress import Progress

OBJECT = pa.schema({"uid": STRING, "title": STRING, "content": STRING, "target_ind": pa.list_(pa.int64())})
RAW = {"trn": "train", "tst": "test", "lbl": "label"}


@dataclass
class Table:
    """One of the three tables: ids, texts, and for points perhaps the rows of their labels."""

    path: Path
    items: Items
    targets: tuple[np.ndarray, np.ndarray] | None  # offsets (n + 1,), label rows


def read_xc(folder: Path, progress: Progress | None = None) -> Catalogue:
    """The catalogue in a folder of the repository; `imported` says what was odd."""
    progress = progress or Progress(quiet=True)
    problems: list[Problem] = []
    labels = _table(folder, "lbl", problems, progress)
    splits = {"train": _table(folder, "trn", problems, progress)}
    if _source(folder, "tst") is not None:
        splits["test"] = _table(folder, "tst", problems, progress)
    items = splits["train"].items
    if "test" in splits:
        items = items.concat(splits["test"].items)
    items = _unique(items, "points", problems)
    own = _unique(labels.items, "labels", problems)
    parts, start = [], 0
    hidden: list[pa.Table] = []
    for name, table in splits.items():
        ids = items.ids.slice(start, len(table.items))
        start += len(table.items)
        offsets, rows = _targets(folder, name, table, len(own))
        names = own.ids.combine_chunks().take(pa.array(rows))
        parts.append(Part(name, "split", pa.table({"id": ids, "labels": lists(offsets, names)})))
        hidden += _filter(folder / f"filter_labels_{name}.txt", ids, own.ids)
    if hidden:
        parts.append(Part("filter", "filter", pa.concat_tables(hidden)))
    catalogue = Catalogue(items, own, parts)
    pairs = sum(len(one) for one in hidden)
    catalogue.imported = Imported("xc", statistics(catalogue), {"filter pairs": pairs}, problems)
    return catalogue


def _source(folder: Path, name: str) -> Path | None:
    """The file of a table: JSON lines, or the released MUFIN's raw text."""
    raw = f"{RAW[name]}.raw.txt"
    candidates = [f"{name}.json.gz", f"{name}.json", f"raw_data/{raw}", f"raw_data/{name}.json", raw]
    return next((folder / file for file in candidates if (folder / file).is_file()), None)


def _table(folder: Path, name: str, problems: list[Problem], progress: Progress) -> Table:
    path = _source(folder, name)
    if path is None:
        raise CatalogueError(f"no {name}.json, {name}.json.gz or raw_data/{RAW[name]}.raw.txt in it", folder)
    if path.name.endswith(".raw.txt"):
        ids, texts = _raw(path)
        targets = None
    else:
        table = _objects(path, progress)
        ids, targets = table["uid"], None
        if name != "lbl" and table["target_ind"].null_count < len(table):
            targets = _lists(table["target_ind"])
        texts = _texts(table)
    pictures = imgbin.find(folder, RAW[name], ids, problems) or NoPictures(len(ids))
    return Table(path, Items(pa.table({"id": ids, "texts": texts}), pictures), targets)


def _objects(path: Path, progress: Progress) -> pa.Table:
    """The lines of a JSON file; a bad one is an error, since others refer to lines by number."""
    bad_lines = BadLines()
    table = pa.concat_tables([OBJECT.empty_table(), *lines.read(path, OBJECT, bad_lines, progress)])
    if bad_lines.count:
        first = bad_lines.problems()[0]
        reason = first.message.removesuffix("; the line is left out")
        raise CatalogueError(f"{reason}; rows are known by their line, so mend it", path, first.line)
    if not len(table):
        raise CatalogueError("empty; expected one object a line", path)
    if table["uid"].null_count:
        row = int(np.flatnonzero(table["uid"].is_null().to_numpy())[0])
        raise CatalogueError(f"no 'uid' in object {row + 1}; every one needs it", path)
    return table


def _texts(table: pa.Table) -> pa.ChunkedArray:
    """Title, then content, where they are not blank."""
    columns = [pc.fill_null(pc.utf8_trim_whitespace(table[name]), "") for name in ("title", "content")]
    both = pc.binary_join_element_wise(*columns, "\0").combine_chunks()
    split = pc.split_pattern(both, "\0").cast(STRINGS)
    lengths = pc.not_equal(pc.list_flatten(split), "").to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)])[np.arange(len(table) + 1) * 2]
    return lists(offsets, pc.list_flatten(split).filter(pa.array(lengths)))


def _raw(path: Path) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """`uid->title` lines, with `_` for blanks in titles; a line without `->` is a title."""
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


def _targets(folder: Path, split: str, table: Table, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and label rows of a split, from its X_Y file or from `target_ind`."""
    path = folder / f"{'trn' if split == 'train' else 'tst'}_X_Y.txt"
    size = len(table.items)
    if path.is_file():
        offsets, rows = read_pairs(path)
        if len(offsets) - 1 != size:
            raise CatalogueError(f"{len(offsets) - 1:,} points, but {table.path.name} has {size:,}", path)
    elif table.targets is not None:
        path, (offsets, rows) = table.path, table.targets
    else:
        raise CatalogueError(
            f"neither target_ind nor {path.name}: which labels do the points have?", table.path
        )
    wrong = np.flatnonzero((rows < 0) | (rows >= labels))
    if len(wrong):
        point = int(np.searchsorted(offsets, wrong[0], side="right"))
        raise CatalogueError(f"point {point}: label {rows[wrong[0]]} of {labels:,} (counted from 0)", path)
    return offsets, rows


def read_pairs(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The rows of an X_Y file: offsets (N + 1,) and labels, end to end."""
    counts, rows = [], []
    with _opened(path) as file:
        header = next(file, b"").split()
        for number, line in enumerate(file, start=2):
            try:
                found = [int(pair.partition(b":")[0]) for pair in line.split()]
                rows.append(np.asarray(found, np.int64))
            except (ValueError, OverflowError):
                raise CatalogueError("not of the form `label:1.0 label:1.0 …`", path, number) from None
            counts.append(len(found))
    if len(header) != 2 or header[0].lstrip(b"0") != (b"%d" % len(counts)).lstrip(b"0"):
        said = b" ".join(header)[:40].decode(errors="replace")
        raise CatalogueError(f"first line says {said!r}, found {len(counts)} points", path, 1)
    flat = np.concatenate([np.zeros(0, np.int64), *rows])
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), flat


def _opened(path: Path) -> gzip.GzipFile:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]  # both are files


def _filter(path: Path, points: pa.ChunkedArray, labels: pa.ChunkedArray) -> Iterator[pa.Table]:
    """The pairs of a filter file by id; an empty or missing file has none."""
    if not path.is_file() or not path.stat().st_size:
        return
    try:
        pairs = np.loadtxt(path, np.int64, ndmin=2)
    except ValueError as error:
        raise CatalogueError(f"not two row numbers a line ({error})", path) from None
    if not len(pairs):
        return
    if pairs.shape[1] != 2 or pairs.min() < 0 or (pairs >= [len(points), len(labels)]).any():
        raise CatalogueError(f"rows beyond {len(points):,} points or {len(labels):,} labels", path)
    columns = [points.take(pa.array(pairs[:, 0])), labels.take(pa.array(pairs[:, 1]))]
    yield pa.table({"id": columns[0], "label": columns[1]})


def _lists(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    rows = pc.list_flatten(column)
    return np.concatenate([[0], np.cumsum(lengths)]), np.asarray(rows.to_numpy(), np.int64)


def _unique(items: Items, what: str, problems: list[Problem]) -> Items:
    """The items with a number behind every uid that was already given."""
    ids = items.ids.to_pylist()
    seen: dict[str, int] = {}
    again = []
    for row, uid in enumerate(ids):
        seen[uid] = seen.get(uid, 0) + 1
        if seen[uid] > 1:
            again.append(uid)
            ids[row] = f"{uid}~{seen[uid]}"
    add_warning(problems, f"uid given twice among the {what}; it has a number behind it now", what, again)
    return Items(items.table.set_column(0, "id", pa.array(ids, STRING)), items.pictures) if again else items
