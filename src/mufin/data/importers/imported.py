"""Imported: what came out of an import, in the form of the paper's table, and what was odd on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.formats.schema import flatten, same_text
from mufin.data.problems import Problem, add_warning, problem_lines

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue
    from mufin.data.items import Items

TOKEN = r"[\pL\pN_]+|[^\pL\pN_\s]"  # words and marks; word pieces of an encoder are a few more


@dataclass
class Statistics:
    """One row of the paper's table of data sets."""

    items: int = 0
    N: int = 0  # training points
    L: int = 0  # labels
    test: int = 0  # test points
    labels_per_point: float = 0.0
    tokens: float = 0.0  # a point
    images: float = 0.0  # a point, fetched or not

    def lines(self) -> list[str]:
        """The row and its header, as Markdown."""
        values = (f"{self.N:,}", f"{self.L:,}", f"{self.test:,}")
        means = (f"{self.labels_per_point:.2f}", f"{self.tokens:.1f}", f"{self.images:.2f}")
        return [
            "| N | L | test | labels/point | tokens | images |",
            "|---|---|---|---|---|---|",
            f"| {' | '.join((*values, *means))} |",
        ]


@dataclass
class Imported:
    """The outcome of an import."""

    format: str
    statistics: Statistics = field(default_factory=Statistics)
    counts: dict[str, int] = field(default_factory=dict)  # what else is worth a number
    problems: list[Problem] = field(default_factory=list)

    def left_out(self, files: Sequence[str]) -> None:
        """Tell of image files that were not copied, and why."""
        add_warning(self.problems, "image file that is left out", "images", files)

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for `json.dumps`."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Everything, to be read by people."""
        counts = [f"{name:<24} {count:,}" for name, count in self.counts.items()]
        return [*problem_lines(self.problems), *counts, *self.statistics.lines()]


def statistics(catalogue: Catalogue) -> Statistics:
    """The row of a catalogue in memory; of sets instead of splits, the first file is the training points."""
    items = catalogue.items
    found = Statistics(items=len(items), L=len(catalogue.labels))
    points = np.arange(len(items))
    if "train" in catalogue.splits:
        train = catalogue.split("train")
        found.N, points = len(train), train.members
        found.labels_per_point = train.relevance.nnz / max(len(train), 1)
    elif catalogue.sets:
        table = catalogue.parts[catalogue.sets[0]].table()
        offsets, flat = flatten(table.column("items"))
        found.N, found.L, found.labels_per_point = len(offsets) - 1, 0, 1.0
        points = items.rows(flat)
        if "blank" in table.column_names:  # a point is the set without it
            owner = np.repeat(np.arange(len(table)), np.diff(offsets))
            points = points[~same_text(flat, table.column("blank").take(owner))]
    if "test" in catalogue.splits:
        found.test = len(catalogue.split("test"))
    size = max(found.N, 1) if found.N else max(len(items), 1)
    used = items.take(points)
    found.tokens = int(text_tokens(used.texts).sum()) / size
    found.images = int(picture_counts(used).sum()) / size
    return found


def text_tokens(texts: pa.ChunkedArray) -> np.ndarray:
    """How many words and marks the texts of each row have."""
    offsets, flat = flatten(texts)
    counts = pc.count_substring_regex(flat, TOKEN)
    total = np.concatenate([[0], np.cumsum(pc.fill_null(counts, 0).to_numpy())])
    return np.diff(total[offsets])


def picture_counts(items: Items) -> np.ndarray:
    """How many pictures each item has or names: those in `image_urls` may have been fetched already."""
    here = np.diff(items.pictures.offsets)
    if "image_urls" not in items.table.column_names:
        return here
    named = flatten(items.table.column("image_urls"))[0]
    return np.maximum(here, np.diff(named))
