"""Write predictions or embeddings of many items to a file or standard output, in bounded memory."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mufin.data.catalogue import read_items
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.files import SUFFIXES
from mufin.data.formats.schema import STRING, STRINGS
from mufin.data.items import Items
from mufin.encode.bag import PackedBags
from mufin.errors import UsageError
from mufin.files.folder import temporary_path
from mufin.model.blocks import Block, Source
from mufin.model.mufin import Mufin
from mufin.progress import Progress
from mufin.signals.base import Query

STDOUT = Path("-")
NUMBERS = pa.list_(pa.float32())
PREDICTIONS = pa.schema(
    {"id": STRING, "labels": STRINGS, "scores": NUMBERS, "probabilities": NUMBERS, "error": STRING}
)


@dataclass(frozen=True)
class Summary:
    """Counts of processed items."""

    items: int
    empty: int  # items without a text or image that the model can read, bad rows among them
    bad_rows: list[str]  # with place and reason


@dataclass(frozen=True)
class Wanted:
    """Which labels to write, and the separator of a cell with several."""

    k: int = 10
    min_probability: float = 0.0
    separator: str = "|"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UsageError(f"k is {self.k}; expected at least 1")
        if not 0 <= self.min_probability <= 1:
            raise UsageError(f"min-probability is {self.min_probability}; expected 0 to 1")


def predict_file(model: Mufin, source: Source, output: Path, wanted: Wanted, progress: Progress) -> Summary:
    """Write one line per item, in their order: `id`, `labels`, `scores`, `probabilities`.

    A line for a bad row has no labels but an `error`. To standard output, write JSON lines or CSV.
    """
    count = empty = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal count, empty
        for block, query in _queries(model, source, progress, "Predicting"):
            table = _top_labels(model, block, query, wanted)
            count, empty = count + len(block.items), empty + int((_sizes(query.bags) == 0).sum())
            yield table

    if output.suffix in (".csv", ".tsv") or (output == STDOUT and source.is_csv):
        _write_csv(tables(), output, wanted.separator)
    else:
        _write(tables(), output, PREDICTIONS)
    return Summary(count, empty, source.bad_rows)


def embed_file(model: Mufin, source: Source, output: Path, progress: Progress) -> Summary:
    """Write x̂¹ per item: (n, D) float32 as .npy, or rows of `id`, `vector` in other formats."""
    dim, count, empty = model.config.embed.dim, 0, 0

    def vectors() -> Iterator[tuple[Items, npt.NDArray[np.float32]]]:
        nonlocal count, empty
        for block, query in _queries(model, source, progress, "Embedding"):
            count, empty = count + len(block.items), empty + int((_sizes(query.bags) == 0).sum())
            yield block.items, query.bags.vectors().float().cpu().numpy()

    if output.suffix == ".npy":
        _write_npy((x for _, x in vectors()), output, dim)
        return Summary(count, empty, source.bad_rows)
    vector_type = pa.list_(pa.float32(), dim)
    tables = (
        pa.table(
            {
                "id": items.ids.combine_chunks(),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), type=vector_type),
            }
        )
        for items, x in vectors()
    )
    _write(tables, output, pa.schema({"id": pa.string(), "vector": vector_type}))
    return Summary(count, empty, source.bad_rows)


def read_item_file(path: Path) -> Items:
    """Read the items of a .jsonl or .parquet file."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: expected a .jsonl or .parquet file of items")
    return read_items(path)


def _queries(model: Mufin, source: Source, progress: Progress, name: str) -> Iterator[tuple[Block, Query]]:
    """Yield each block with its queries."""
    done = 0
    with progress.task(name, source.total) as task:
        for block in source.blocks:
            features = model.features(block.items, cached=source.cached)
            yield block, model.query(features)
            task.advance(block.done - done)
            done = block.done


def _top_labels(model: Mufin, block: Block, query: Query, wanted: Wanted) -> pa.Table:
    """Return the best labels of each item; none for items without content."""
    ranked = model.rank(query, wanted.k, block.hidden)
    labels, scores = ranked.labels.cpu().numpy(), ranked.score.float().cpu().numpy()  # (B, k)
    probabilities = ranked.probability.float().cpu().numpy()  # (B, k)
    shown = (labels >= 0) & (_sizes(query.bags) > 0)[:, None] & (probabilities >= wanted.min_probability)
    offsets = pa.array(np.append(0, np.cumsum(shown.sum(axis=1))), pa.int32())
    columns = {
        "labels": model.labels.items.ids.take(pa.array(labels[shown])).combine_chunks(),
        "scores": pa.array(scores[shown]),
        "probabilities": pa.array(probabilities[shown]),
    }
    lists = {name: pa.ListArray.from_arrays(offsets, values) for name, values in columns.items()}
    errors = pa.array([fault or None for fault in block.faults], STRING)
    return pa.table({"id": block.items.ids.combine_chunks(), **lists, "error": errors})


def _sizes(bags: PackedBags) -> npt.NDArray[np.int64]:
    """Count the descriptors of each bag, (n,)."""
    return np.diff(bags.offsets.cpu().numpy())


# -- output --------------------------------------------------------------------------------------------------


def _write(tables: Iterator[pa.Table], output: Path, schema: pa.Schema) -> None:
    """Write all tables as Parquet or JSON lines."""
    if output.suffix == ".parquet":

        def with_schema() -> Iterator[pa.Table]:
            yield schema.empty_table()  # so that a file without items is valid too
            for table in tables:
                yield table.cast(schema)

        parquet.write(with_schema(), output)
        return
    with _opened(output) as file:
        for table in tables:
            for row in _rounded(table):
                kept = {name: value for name, value in row.items() if value is not None}
                file.write(json.dumps(kept, ensure_ascii=False) + "\n")
            _flush(file, output)


def _write_csv(tables: Iterator[pa.Table], output: Path, separator: str) -> None:
    """Write all predictions as CSV or TSV, lists with a separator between their values."""
    with _opened(output) as file:
        writer = csv.writer(file, delimiter="\t" if output.suffix == ".tsv" else ",", lineterminator="\n")
        writer.writerow(PREDICTIONS.names)
        for table in tables:
            for row in _rounded(table):
                writer.writerow(
                    separator.join(map(str, value)) if isinstance(value, list) else value
                    for value in row.values()
                )
            _flush(file, output)


@contextmanager
def _opened(output: Path) -> Iterator[IO[str]]:
    """Open standard output, or a file that appears only when it is complete."""
    if output == STDOUT:
        yield sys.stdout
        return
    temporary = temporary_path(output)
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            yield file
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def _flush(file: IO[str], output: Path) -> None:
    """Flush what has been written, so that a pipe receives it."""
    if output == STDOUT:
        file.flush()


def _rounded(table: pa.Table) -> Iterator[dict[str, Any]]:
    for row in jsonl.rows(table):
        numbers = {name: row[name] for name in ("scores", "probabilities", "vector") if name in row}
        yield row | {name: [round(value, 6) for value in values] for name, values in numbers.items()}


def _write_npy(blocks: Iterator[npt.NDArray[np.float32]], output: Path, dim: int) -> None:
    """Write the rows, then their number into the header, which numpy pads for that."""
    temporary = temporary_path(output)
    header = {"descr": "<f4", "fortran_order": False}
    try:
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header | {"shape": (0, dim)})
            count = 0
            for block in blocks:
                file.write(np.ascontiguousarray(block, "<f4").tobytes())
                count += len(block)
            file.seek(0)
            np.lib.format.write_array_header_1_0(file, header | {"shape": (count, dim)})
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
