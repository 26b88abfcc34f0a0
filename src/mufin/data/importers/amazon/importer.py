"""Import millions of products into a catalogue folder; only keys and row numbers stay in memory.

lines → spool (id, title, URLs, category) and keys of also-bought ids → pairs of rows → curation → catalogue
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mufin.data.check_report import BadLines, Problem
from mufin.data.formats import parquet
from mufin.data.formats.schema import STRING, STRINGS, flatten, lists
from mufin.data.importers.amazon.curate import Curated, Curation, KeyIndex, Relation, curate, id_keys
from mufin.data.importers.amazon.fields import products
from mufin.data.importers.imported import Imported, Statistics, text_tokens
from mufin.data.write import new_folder
from mufin.errors import CatalogueError, UsageError
from mufin.progress import QUIET, Progress

SPOOL_SCHEMA = pa.schema({"id": STRING, "title": STRING, "image_urls": STRINGS, "category": STRING})
ROWS_PER_GROUP = 1 << 16  # products per row group, and written at a time
KEYS_PER_LOOKUP = 4 << 20
KEY_BYTES = 8


def import_amazon(
    sources: Sequence[Path], folder: Path, curation: Curation | None = None, progress: Progress = QUIET
) -> Imported:
    """Write the products of these files as a catalogue; without a curation, all are in `train`."""
    if not sources:
        raise UsageError("no file to import; name at least one file of Amazon product metadata")
    for path in sources:
        if not path.is_file():
            raise CatalogueError("no such file; expected Amazon product metadata, plain or .gz", path)
    bad_lines = BadLines()
    with new_folder(folder) as temporary:
        spool = Spool(temporary)
        spool.fill(table for path in sources for table in products(path, bad_lines, progress))
        if not any(map(len, spool.keys)):
            raise CatalogueError("no usable product; is this Amazon product metadata?", sources[0])
        imported = _convert(spool, temporary, curation, progress)
        spool.remove()
    imported.counts["bad lines"] = bad_lines.count
    imported.problems = [*bad_lines.problems(), *imported.problems]
    return imported


@dataclass
class Spool:
    """Products on disk; per product, memory holds its key, its number of also-bought ids, and a flag."""

    folder: Path
    keys: list[np.ndarray] = field(default_factory=list)
    also_bought: list[np.ndarray] = field(default_factory=list)  # how many ids
    has_content: list[np.ndarray] = field(default_factory=list)  # a title or an image

    @property
    def path(self) -> Path:
        return self.folder / "_spool.parquet"

    @property
    def references(self) -> Path:
        """The file with the keys of all also-bought ids, end to end."""
        return self.folder / "_references.bin"

    def fill(self, tables: Iterable[pa.Table]) -> None:
        """Write products to the spool."""
        options = {"compression": "lz4", "use_dictionary": ["category"]}
        with (
            pq.ParquetWriter(self.path, SPOOL_SCHEMA, **options) as writer,
            self.references.open("wb") as references,
        ):
            for table in _in_groups(tables):
                offsets, also_bought = flatten(table["also_bought"])
                self.keys.append(id_keys(table["id"].combine_chunks()))
                self.also_bought.append(np.diff(offsets).astype(np.int32))
                has_image = pc.list_value_length(table["image_urls"]).to_numpy() > 0
                self.has_content.append(has_image | table["title"].is_valid().to_numpy())
                references.write(id_keys(also_bought.combine_chunks()).tobytes())
                writer.write_table(table.select(SPOOL_SCHEMA.names), row_group_size=ROWS_PER_GROUP)

    def relation(self) -> tuple[Relation, np.ndarray, int]:
        """Return the pairs of rows, a mask of the first row of each id, and the number of unknown ids."""
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self.also_bought), dtype=np.int64)])
        keys = np.concatenate(self.keys)
        self.also_bought.clear()
        self.keys.clear()
        index = KeyIndex(keys)
        first_rows = [
            index.rows(keys[start : start + KEYS_PER_LOOKUP])
            for start in range(0, len(keys), KEYS_PER_LOOKUP)
        ]
        is_first = np.concatenate(first_rows) == np.arange(len(keys), dtype=np.int32)
        labels = np.empty(int(offsets[-1]), np.int32)
        unknown = 0
        with self.references.open("rb") as file:
            for start in range(0, len(labels), KEYS_PER_LOOKUP):
                block = labels[start : start + KEYS_PER_LOOKUP]
                block[:] = index.rows(np.frombuffer(file.read(KEY_BYTES * KEYS_PER_LOOKUP), np.uint64))
                unknown += int((block < 0).sum())
        return Relation(offsets, labels), is_first, unknown

    def rows(self, chosen: np.ndarray, progress: Progress, name: str) -> Iterator[pa.Table]:
        """Yield the products of these rows (ascending), one row group at a time."""
        file = parquet.open_parquet(self.path)
        start = 0
        with progress.task(name, file.metadata.num_row_groups) as task:
            for group in range(file.metadata.num_row_groups):
                stop = start + file.metadata.row_group(group).num_rows
                in_group = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, stop)] - start
                if len(in_group):
                    yield file.read_row_group(group).take(pa.array(in_group))
                start = stop
                task.advance()

    def ids(self) -> pa.ChunkedArray:
        """Read all ids, in order."""
        return parquet.open_parquet(self.path).read(columns=["id"])["id"]

    def remove(self) -> None:
        """Delete the files."""
        self.path.unlink()
        self.references.unlink()


def _convert(spool: Spool, folder: Path, curation: Curation | None, progress: Progress) -> Imported:
    """Write the tables of a catalogue from the spool."""
    progress.say("Looking up also-bought products")
    relation, is_first, unknown = spool.relation()
    has_content = np.concatenate(spool.has_content)
    imported = Imported("amazon", counts={"products": len(is_first), "unknown product ids": unknown})
    if repeated := int((~is_first).sum()):
        message = "duplicate asin; the first is used"
        imported.problems.append(Problem("warning", message, "products", repeated))
    if curation is None:
        relation.drop_duplicates()
        relation.keep(is_first, is_first)
        none = np.zeros(0, np.int64)
        chosen = Curated(np.flatnonzero(is_first), none, none, none.reshape(0, 2), 0)
    else:
        chosen = curate(relation, is_first & has_content, curation)
        imported.counts["without title or image"] = int((is_first & ~has_content).sum())
    if not len(chosen.train):
        raise CatalogueError("no product to train on: no also-bought id is a product of these files")
    max_images = None if curation is None else curation.pictures
    imported.statistics = _CatalogueWriter(spool, folder, relation, chosen, max_images, progress).write()
    if len(chosen.filter_pairs):
        imported.counts["reciprocal pairs"] = chosen.reciprocal
        imported.counts["filter pairs"] = len(chosen.filter_pairs)
    return imported


@dataclass
class _CatalogueWriter:
    """Write the chosen products of a spool as the tables of a catalogue."""

    spool: Spool
    folder: Path
    relation: Relation
    chosen: Curated
    max_images: int | None
    progress: Progress
    tokens: int = 0  # of all items written so far
    images: int = 0

    def write(self) -> Statistics:
        """Write all tables; return the statistics of the catalogue."""
        chosen = self.chosen
        points = np.sort(np.concatenate([chosen.train, chosen.test]))
        items = (self._item_table(table) for table in self.spool.rows(points, self.progress, "Writing items"))
        parquet.write(self._counted(items), self.folder / "items.parquet")
        if len(chosen.labels):
            labels = self.spool.rows(chosen.labels, self.progress, "Writing labels")
            parquet.write(map(self._item_table, labels), self.folder / "labels.parquet")
        ids = self.spool.ids().combine_chunks()
        for name, rows in (("train", chosen.train), ("test", chosen.test)):
            if len(rows):
                parquet.write(self._split_tables(rows, ids), self.folder / f"{name}.parquet")
        if len(chosen.filter_pairs):
            point, label = (ids.take(pa.array(rows)) for rows in chosen.filter_pairs.T)
            parquet.write([pa.table({"id": point, "label": label})], self.folder / "filter.parquet")
        return Statistics(
            items=len(points),
            N=len(chosen.train),
            L=len(chosen.labels) or len(points),
            test=len(chosen.test),
            labels_per_point=float(self.relation.labels_per_point()[chosen.train].mean()),
            tokens=self.tokens / len(points),
            images=self.images / len(points),
        )

    def _counted(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Yield the tables; count their tokens and images."""
        for table in tables:
            self.tokens += int(text_tokens(table["texts"]).sum())
            self.images += pc.sum(pc.list_value_length(table["image_urls"])).as_py() or 0
            yield table

    def _item_table(self, table: pa.Table) -> pa.Table:
        """Return spooled products as rows of `items`."""
        title, urls = table["title"], table["image_urls"]
        texts = lists(np.concatenate([[0], np.cumsum(title.is_valid().to_numpy())]), title.drop_null())
        if self.max_images is not None:
            urls = pc.list_slice(urls, 0, self.max_images)
        columns = {"id": table["id"], "texts": texts, "category": table["category"]}
        return pa.table(columns | {"image_urls": urls.cast(STRINGS)})

    def _split_tables(self, rows: np.ndarray, ids: pa.Array) -> Iterator[pa.Table]:
        """Yield the points of a split with the ids of their labels, one row group at a time."""
        offsets, labels = self.relation.offsets, self.relation.labels
        for start in range(0, len(rows), ROWS_PER_GROUP):
            group = rows[start : start + ROWS_PER_GROUP]
            counts = offsets[group + 1] - offsets[group]
            places = np.arange(counts.sum()) + np.repeat(offsets[group] - np.cumsum(counts) + counts, counts)
            found = labels[places]
            kept = found >= 0
            new_offsets = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], np.cumsum(counts)])]
            names = ids.take(pa.array(found[kept]))
            yield pa.table({"id": ids.take(pa.array(group)), "labels": lists(new_offsets, names)})


def _in_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of about ROWS_PER_GROUP rows."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(len(one) for one in held) >= ROWS_PER_GROUP:
            yield pa.concat_tables(held).combine_chunks()
            held = []
    if held:
        yield pa.concat_tables(held).combine_chunks()
