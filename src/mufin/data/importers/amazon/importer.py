"""Millions of products into a catalogue folder; only keys and row numbers stay in memory.

lines → spool (id, title, addresses, category) and keys of `also` → pairs of rows → curation → catalogue
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mufin.data.formats import parquet
from mufin.data.formats.schema import STRING, STRINGS, flatten, lists
from mufin.data.importers.amazon.curate import Curated, Curation, Relation, curate
from mufin.data.importers.amazon.fields import products
from mufin.data.importers.amazon.keys import KeyIndex, keys
from mufin.data.importers.imported import Imported, Statistics, text_tokens
from mufin.data.problems import BadLines, Problem
from mufin.data.write import new_folder
from mufin.errors import CatalogueError, UsageError
from mufin.progress import Progress

SPOOL = pa.schema({"id": STRING, "title": STRING, "image_urls": STRINGS, "category": STRING})
ROWS = 1 << 16  # products in a row group, and written at a time
KEYS = 4 << 20  # keys looked up at a time


@dataclass
class Spool:
    """Products on disk; in memory of each its key, how many others it names, whether it has anything."""

    folder: Path
    keys: list[np.ndarray] = field(default_factory=list)
    named: list[np.ndarray] = field(default_factory=list)
    filled: list[np.ndarray] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "_spool.parquet"

    @property
    def references(self) -> Path:
        """The keys of all ids bought too, end to end."""
        return self.folder / "_references.bin"

    def fill(self, tables: Iterable[pa.Table]) -> None:
        """Write the products down."""
        with (
            pq.ParquetWriter(self.path, SPOOL, compression="lz4", use_dictionary=["category"]) as writer,
            self.references.open("wb") as references,
        ):
            for table in _in_groups(tables):
                offsets, also = flatten(table["also"])
                self.keys.append(keys(table["id"].combine_chunks()))
                self.named.append(np.diff(offsets).astype(np.int32))
                addresses = pc.list_value_length(table["image_urls"]).to_numpy() > 0
                self.filled.append(addresses | table["title"].is_valid().to_numpy())
                references.write(keys(also.combine_chunks()).tobytes())
                writer.write_table(table.select(SPOOL.names), row_group_size=ROWS)

    def relation(self) -> tuple[Relation, np.ndarray, int]:
        """The pairs of rows, which rows are the first of their id, and how many ids were unknown."""
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self.named), dtype=np.int64)])
        own = np.concatenate(self.keys)
        self.named.clear()
        self.keys.clear()
        index = KeyIndex(own)
        first = np.concatenate(
            [index.rows(own[start : start + KEYS]) for start in range(0, len(own), KEYS)]
        ) == np.arange(len(own), dtype=np.int32)
        columns = np.empty(int(offsets[-1]), np.int32)
        unknown = 0
        with self.references.open("rb") as file:
            for start in range(0, len(columns), KEYS):
                wanted = np.frombuffer(file.read(8 * KEYS), np.uint64)
                columns[start : start + KEYS] = index.rows(wanted)
                unknown += int((columns[start : start + KEYS] < 0).sum())
        return Relation(offsets, columns), first, unknown

    def rows(self, chosen: np.ndarray, progress: Progress, name: str) -> Iterator[pa.Table]:
        """The products of these rows (ascending), a row group at a time."""
        file = pq.ParquetFile(self.path)
        start = 0
        with progress.task(name, file.metadata.num_row_groups) as task:
            for group in range(file.metadata.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                inside = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, stop)] - start
                if len(inside):
                    yield file.read_row_group(group).take(pa.array(inside))
                start = stop
                task.advance()

    def ids(self) -> pa.ChunkedArray:
        """All ids, in order."""
        return pq.read_table(self.path, columns=["id"])["id"]

    def remove(self) -> None:
        """Remove the files."""
        self.path.unlink()
        self.references.unlink()


def import_amazon(
    sources: Sequence[Path], folder: Path, curation: Curation | None = None, progress: Progress | None = None
) -> Imported:
    """Write the products of these files as a catalogue; without a curation all of them are in `train`."""
    progress = progress or Progress(quiet=True)
    if not sources:
        raise UsageError("no file to import; give one or more of Amazon's metadata files")
    for path in sources:
        if not path.is_file():
            raise CatalogueError("no such file; expected Amazon product metadata, plain or .gz", path)
    bad_lines = BadLines()
    with new_folder(folder) as temporary:
        spool = Spool(temporary)
        spool.fill(table for path in sources for table in products(path, bad_lines, progress))
        if not any(map(len, spool.keys)):
            raise CatalogueError("no product in it that can be used", sources[0])
        imported = _convert(spool, temporary, curation, progress)
        spool.remove()
    imported.counts["bad lines"] = bad_lines.count
    imported.problems = [*bad_lines.problems(), *imported.problems]
    return imported


def _convert(spool: Spool, folder: Path, curation: Curation | None, progress: Progress) -> Imported:
    """From the spool to the tables of a catalogue."""
    progress.say("Looking up the products that were bought too")
    relation, first, unknown = spool.relation()
    filled = np.concatenate(spool.filled)
    found = Imported("amazon", counts={"products": len(first), "ids that are no product": unknown})
    if repeated := int((~first).sum()):
        message = "asin given twice; the first counts"
        found.problems.append(Problem("warning", message, "products", repeated))
    if curation is None:
        relation.distinct()
        relation.keep(first, first)
        none = np.zeros(0, np.int64)
        chosen = Curated(np.flatnonzero(first), none, none, none.reshape(0, 2), 0)
    else:
        chosen = curate(relation, first & filled, curation)
        found.counts["without title and picture"] = int((first & ~filled).sum())
    if not len(chosen.train):
        raise CatalogueError("no product is left to train on: none names another that is there")
    return _write(spool, folder, relation, chosen, found, curation, progress)


def _write(
    spool: Spool,
    folder: Path,
    relation: Relation,
    chosen: Curated,
    found: Imported,
    curation: Curation | None,
    progress: Progress,
) -> Imported:
    points = np.sort(np.concatenate([chosen.train, chosen.test]))
    pictures = None if curation is None else curation.pictures
    seen = _Seen()
    parquet.write(
        seen.watch(_items(table, pictures) for table in spool.rows(points, progress, "Writing items")),
        folder / "items.parquet",
    )
    own = not len(chosen.labels)
    if not own:
        named = spool.rows(chosen.labels, progress, "Writing labels")
        parquet.write((_items(table, pictures) for table in named), folder / "labels.parquet")
    ids = spool.ids().combine_chunks()
    for name, rows in (("train", chosen.train), ("test", chosen.test)):
        if len(rows):
            parquet.write(_split(relation, rows, ids), folder / f"{name}.parquet")
    if len(chosen.hidden):
        pairs = {
            "id": ids.take(pa.array(chosen.hidden[:, 0])),
            "label": ids.take(pa.array(chosen.hidden[:, 1])),
        }
        parquet.write([pa.table(pairs)], folder / "filter.parquet")
        found.counts["reciprocal pairs"] = chosen.reciprocal
        found.counts["filter pairs"] = len(chosen.hidden)
    n = len(points)
    found.statistics = Statistics(
        n, len(chosen.train), n if own else len(chosen.labels), len(chosen.test),
        float(relation.degrees()[chosen.train].mean()), seen.tokens / n, seen.pictures / n,
    )  # fmt: skip
    return found


class _Seen:
    """Counts tokens and pictures of the tables that pass."""

    def __init__(self) -> None:
        self.tokens = self.pictures = 0

    def watch(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self.tokens += int(text_tokens(table["texts"]).sum())
            self.pictures += pc.sum(pc.list_value_length(table["image_urls"])).as_py() or 0
            yield table


def _items(table: pa.Table, pictures: int | None) -> pa.Table:
    """Spooled products as rows of `items`."""
    title, addresses = table["title"], table["image_urls"]
    texts = lists(np.concatenate([[0], np.cumsum(title.is_valid().to_numpy())]), title.drop_null())
    if pictures is not None:
        addresses = pc.list_slice(addresses, 0, pictures)
    return pa.table(
        {
            "id": table["id"],
            "texts": texts,
            "category": table["category"],
            "image_urls": addresses.cast(STRINGS),
        }
    )


def _split(relation: Relation, rows: np.ndarray, ids: pa.Array) -> Iterator[pa.Table]:
    """The points of a split with the ids of their labels, some at a time."""
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        begins, ends = relation.offsets[some], relation.offsets[some + 1]
        counts = ends - begins
        places = np.arange(counts.sum()) + np.repeat(begins - np.cumsum(counts) + counts, counts)
        columns = relation.columns[places]
        real = columns >= 0
        kept = np.concatenate([[0], np.cumsum(real)])[np.concatenate([[0], np.cumsum(counts)])]
        yield pa.table(
            {"id": ids.take(pa.array(some)), "labels": lists(kept, ids.take(pa.array(columns[real])))}
        )


def _in_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of about a row group."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(len(one) for one in held) >= ROWS:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()
