"""Imported: the result of an import: statistics as in the paper's table, counts and problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.check_report import Problem, add_warning, problem_lines
from mufin.data.formats.schema import flatten, same_text

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue
    from mufin.data.items import Items

TOKEN = r"[\pL\pN_]+|[^\pL\pN_\s]"  # words and punctuation; an encoder's tokenizer gives a few more


@dataclass
class Statistics:
    """The numbers of the paper's table of data sets."""

    items: int = 0
    N: int = 0  # training points
    L: int = 0  # labels
    test: int = 0  # test points
    labels_per_point: float = 0.0
    tokens: float = 0.0  # per point
    images: float = 0.0  # per point, downloaded or not

    def facts(self) -> list[tuple[str, str]]:
        """Return the numbers for people, each with its name."""
        points = [
            ("training datapoints", f"{self.N:,}"),
            ("test datapoints", f"{self.test:,}"),
            ("labels", f"{self.L:,}"),
            ("labels per datapoint", f"{self.labels_per_point:.2f}"),
        ]
        means = [("words per item", f"{self.tokens:.1f}"), ("images per item", f"{self.images:.2f}")]
        return [("items", f"{self.items:,}"), *(points if self.N else []), *means]


@dataclass
class Imported:
    """The result of an import."""

    format: str
    statistics: Statistics = field(default_factory=Statistics)
    counts: dict[str, int] = field(default_factory=dict)  # further numbers, by name
    problems: list[Problem] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)  # columns of a table that were not imported
    bad_rows: list[str] = field(default_factory=list)  # the rows skipped, each with place and reason

    def add_skipped_images(self, files: Sequence[str]) -> None:
        """Report image files that were not copied, each with the reason."""
        add_warning(self.problems, "image file skipped", "images", files)

    def to_json(self) -> dict[str, Any]:
        """Return everything as values for `json.dumps`."""
        return asdict(self)

    def facts(self) -> list[tuple[str, str]]:
        """Return all numbers for people, each with its name."""
        return [*((name, f"{count:,}") for name, count in self.counts.items()), *self.statistics.facts()]

    def lines(self) -> list[str]:
        """Format the problems as text."""
        return problem_lines(self.problems)


def statistics(catalogue: Catalogue) -> Statistics:
    """Compute the statistics of a catalogue; without splits, the sets of the first file are the points."""
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
        if "blank" in table.column_names:  # the point is the set without its blank
            owner = np.repeat(np.arange(len(table)), np.diff(offsets))
            points = points[~same_text(flat, table.column("blank").take(owner))]
    if "test" in catalogue.splits:
        found.test = len(catalogue.split("test"))
    size = max(found.N, 1) if found.N else max(len(items), 1)
    used = items.take(points)
    found.tokens = int(text_tokens(used.texts).sum()) / size
    found.images = int(image_counts(used).sum()) / size
    return found


def text_tokens(texts: pa.ChunkedArray) -> np.ndarray:
    """Count the words and punctuation marks in the texts of each row."""
    offsets, flat = flatten(texts)
    counts = pc.count_substring_regex(flat, TOKEN)
    total = np.concatenate([[0], np.cumsum(pc.fill_null(counts, 0).to_numpy())])
    return np.diff(total[offsets])


def image_counts(items: Items) -> np.ndarray:
    """Count the images of each item; one in `image_urls` may already be in `images`, too."""
    stored = np.diff(items.pictures.offsets)
    if "image_urls" not in items.table.column_names:
        return stored
    offsets, _ = flatten(items.table.column("image_urls"))
    return np.maximum(stored, np.diff(offsets))
