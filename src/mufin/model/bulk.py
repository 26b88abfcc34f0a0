"""Predict labels or embeddings from file to file, in blocks that bound memory use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.sparse import csr_matrix

from mufin.data.catalogue import Catalogue, read_items
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.files import SUFFIXES
from mufin.data.items import Items
from mufin.encode.bag import PackedBags
from mufin.errors import UsageError
from mufin.files.folder import temporary_path
from mufin.model.mufin import Mufin
from mufin.progress import Progress
from mufin.signals.base import Query

ITEMS_PER_BLOCK = 1024  # processed at a time


@dataclass(frozen=True)
class Source:
    """Items to process, and the labels never to return for each."""

    items: Items
    hidden: csr_matrix | None  # (n, L of the model) bool
    cached: bool  # whether to use the feature cache for frozen outputs

    @classmethod
    def of(cls, path: Path, model: Mufin, split: str | None = None) -> Source:
        """Read the items of a catalogue folder, one of its splits, or a .jsonl or .parquet file."""
        if not path.is_dir():
            if split is not None:
                raise UsageError(
                    f"{path} is not a catalogue folder, so it has no split {split!r}; omit --split"
                )
            items = read_item_file(path)
            return cls(items, model.own_labels(items), cached=False)
        catalogue = Catalogue.read(path)
        rows = np.arange(len(catalogue.items)) if split is None else catalogue.split(split).members
        items = catalogue.items.take(rows)
        hidden = model.labels.align(catalogue.filter[rows], catalogue.labels)
        own = model.own_labels(items)
        # Features of a catalogue were probably computed and cached during training.
        return cls(items, hidden if own is None else csr_matrix(hidden + own), cached=True)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True)
class Summary:
    """Counts of processed items."""

    items: int
    empty: int  # items without a text or image that the model can read


def predict_file(model: Mufin, source: Source, output: Path, k: int, progress: Progress) -> Summary:
    """Write the k best labels per item, as rows of `id`, `labels`, `scores` in the order of the items."""
    if k < 1:
        raise UsageError(f"k is {k}; expected at least 1")
    empty = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal empty
        for start, items, query in _blocks(model, source, progress, "Predicting"):
            labels, scores, without_content = _top_labels(model, source, start, query, k)
            empty += without_content
            yield pa.table({"id": items.ids.combine_chunks(), "labels": labels, "scores": scores})

    _write(tables(), output, _PREDICTION_SCHEMA)
    return Summary(len(source), empty)


def embed_file(model: Mufin, source: Source, output: Path, progress: Progress) -> Summary:
    """Write x̂¹ per item: (n, D) float32 as .npy, or rows of `id`, `vector` as .parquet or .jsonl."""
    dim, empty = model.config.embed.dim, 0

    def vectors() -> Iterator[tuple[int, Items, npt.NDArray[np.float32]]]:
        nonlocal empty
        for start, items, query in _blocks(model, source, progress, "Embedding"):
            empty += int((_sizes(query.bags) == 0).sum())
            yield start, items, query.bags.vectors().float().cpu().numpy()

    if output.suffix == ".npy":
        _write_npy(((start, x) for start, _, x in vectors()), output, (len(source), dim))
        return Summary(len(source), empty)
    vector_type = pa.list_(pa.float32(), dim)
    tables = (
        pa.table(
            {
                "id": items.ids.combine_chunks(),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), type=vector_type),
            }
        )
        for _, items, x in vectors()
    )
    _write(tables, output, pa.schema({"id": pa.string(), "vector": vector_type}))
    return Summary(len(source), empty)


def check_output(path: Path, suffixes: tuple[str, ...], source: Path) -> None:
    """Reject an output path that cannot be written, and create its folder."""
    if path.suffix not in suffixes:
        raise UsageError(f"{path}: expected a file name ending in {' or '.join(suffixes)}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; expected a file name")
    if path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} is the input file; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)


_PREDICTION_SCHEMA = pa.schema(
    {"id": pa.string(), "labels": pa.list_(pa.string()), "scores": pa.list_(pa.float32())}
)


def read_item_file(path: Path) -> Items:
    """Read the items of a .jsonl or .parquet file."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: expected a .jsonl or .parquet file of items")
    return read_items(path)


def _blocks(
    model: Mufin, source: Source, progress: Progress, name: str
) -> Iterator[tuple[int, Items, Query]]:
    """Yield the first row, the items and the queries of each block."""
    with progress.task(name, len(source)) as task:
        for start in range(0, len(source), ITEMS_PER_BLOCK):
            items = source.items.take(np.arange(start, min(start + ITEMS_PER_BLOCK, len(source))))
            features = model.features(items, cached=source.cached)
            yield start, items, model.query(features)
            task.advance(len(items))


def _top_labels(
    model: Mufin, source: Source, start: int, query: Query, k: int
) -> tuple[pa.Array, pa.Array, int]:
    """Return lists of label ids and scores (empty for items without content), and how many are empty."""
    hidden = None if source.hidden is None else source.hidden[start : start + len(query)]
    ranked = model.rank(query, k, hidden)
    labels, scores = ranked.labels.cpu().numpy(), ranked.score.float().cpu().numpy()  # (B, k)
    has_content = _sizes(query.bags) > 0
    shown = (labels >= 0) & has_content[:, None]
    offsets = pa.array(np.append(0, np.cumsum(shown.sum(axis=1))), pa.int32())
    ids = model.labels.items.ids.take(pa.array(labels[shown])).combine_chunks()
    lists = (
        pa.ListArray.from_arrays(offsets, ids),
        pa.ListArray.from_arrays(offsets, pa.array(scores[shown])),
    )
    return *lists, int((~has_content).sum())


def _sizes(bags: PackedBags) -> npt.NDArray[np.int64]:
    """Count the descriptors of each bag, (n,)."""
    return np.diff(bags.offsets.cpu().numpy())


def _write(tables: Iterator[pa.Table], output: Path, schema: pa.Schema) -> None:
    """Write all tables to one file, which appears only once it is complete."""
    if output.suffix == ".jsonl":
        jsonl.write(_rounded(tables), output)
        return

    def with_schema() -> Iterator[pa.Table]:
        yield schema.empty_table()  # so that a file without items is valid too
        for table in tables:
            yield table.cast(schema)

    parquet.write(with_schema(), output)


def _rounded(tables: Iterator[pa.Table]) -> Iterator[dict[str, Any]]:
    for table in tables:
        for row in jsonl.rows(table):
            numbers = "scores" if "scores" in row else "vector"
            yield row | {numbers: [round(value, 6) for value in row[numbers]]}


def _write_npy(
    blocks: Iterator[tuple[int, npt.NDArray[np.float32]]], output: Path, shape: tuple[int, int]
) -> None:
    temporary = temporary_path(output)
    try:
        if shape[0]:
            array = np.lib.format.open_memmap(temporary, "w+", np.float32, shape)
            for start, block in blocks:
                array[start : start + len(block)] = block
            array.flush()
            del array
        else:
            with temporary.open("wb") as file:  # an empty file cannot be mapped
                np.save(file, np.zeros(shape, np.float32))
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
