"""Study: a model's answers on a split, and all that the sections of a report ask about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.split import Split
from mufin.data.thumbnails import small
from mufin.encode.features import Features, Groups
from mufin.evaluate.bins import categories_of
from mufin.evaluate.relevant_hits import FloatArray
from mufin.evaluate.report.figures import shortened
from mufin.evaluate.report.page import Card, data_uri
from mufin.evaluate.score import Predictions, seen
from mufin.model import Mufin
from mufin.ragged import Ints
from mufin.signals.base import Query, marked

TITLE = 90  # characters of a text on a card


@dataclass(frozen=True)
class Study:
    """What was asked, what was answered, and what is true; label rows are the catalogue's."""

    model: Mufin
    catalogue: Catalogue
    points: Split
    features: Features
    predictions: Predictions
    propensity: tuple[float, float]
    category: str  # the column of items that holds it
    seed: int = 0

    def __len__(self) -> int:
        return len(self.points)

    @property
    def rng(self) -> np.random.Generator:
        """The same choices in every report."""
        return np.random.default_rng(self.seed)

    @cached_property
    def relevant(self) -> npt.NDArray[np.bool_]:
        """Which predicted labels are relevant, (n, k)."""
        return marked(torch.from_numpy(self.predictions.labels), self.points.relevance).numpy()

    @cached_property
    def frequency(self) -> Ints:
        """How many training points have each label, (L,)."""
        return np.asarray(seen(self.catalogue, self.points).sum(axis=0), np.int64).ravel()

    @cached_property
    def model_rows(self) -> Ints:
        """The row in the model of each label of the catalogue, −1 where it has none; (L,)."""
        rows = self.model.labels.items.rows(self.catalogue.labels.ids)
        alive = self.model.labels.alive.cpu().numpy()
        return np.where((rows >= 0) & alive[rows], rows, -1)

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.points.offsets, self.points.members)

    def query(self, points: Ints) -> Query:
        """These points, ready to be ranked."""
        return self.model.query(self.features, self.groups.take(points))

    def members(self, point: int) -> list[int]:
        """The item rows of a point."""
        offsets = self.points.offsets
        return [int(row) for row in self.points.members[offsets[point] : offsets[point + 1]]]

    def truth(self, point: int) -> list[int]:
        """The relevant labels of a point."""
        ends = self.points.relevance.indptr
        return [int(label) for label in self.points.relevance.indices[ends[point] : ends[point + 1]]]

    def sample(self, wanted: int, among: npt.NDArray[np.integer] | None = None) -> Ints:
        """Some points at random."""
        pool = np.arange(len(self)) if among is None else among
        chosen = self.rng.choice(pool, min(wanted, len(pool)), replace=False)
        return np.asarray(chosen, np.int64)

    @cached_property
    def categories(self) -> list[str] | None:
        """The category of each point (its first item's), or nothing where the items have none."""
        first = self.points.members[self.points.offsets[:-1]]
        return categories_of(self.catalogue.items, first, self.category)

    def label_categories(self, rows: Ints) -> list[str] | None:
        """The category of each of these labels."""
        return categories_of(self.catalogue.labels, rows, self.category)

    def interval(self, values: FloatArray) -> float:
        """Half the width of a mean's 95 % interval, by the normal distribution."""
        return float(1.96 * values.std() / np.sqrt(max(1, len(values))))

    # -- cards -----------------------------------------------------------------------------------------------

    def point_card(self, point: int, note: str = "") -> Card:
        """A point: its texts, and its first picture."""
        rows = self.members(point)
        texts = [name_of(self.catalogue.items, row) for row in rows]
        return Card(shortened(" + ".join(texts), TITLE), note, picture_of(self.catalogue.items, rows))

    def label_card(self, label: int, relevant: bool | None = None, note: str = "") -> Card:
        """A label: its first text, and its first picture."""
        labels = self.catalogue.labels
        return Card(shortened(name_of(labels, label), TITLE), note, picture_of(labels, [label]), relevant)

    def hit_card(self, point: int, place: int) -> Card:
        """What was predicted for a point at a place, 0 = best."""
        label, chance = (a[point, place] for a in (self.predictions.labels, self.predictions.probability))
        return self.label_card(int(label), bool(self.relevant[point, place]), f"probability {chance:.0%}")

    def best(self, point: int, k: int) -> list[Card]:
        """The k best labels of a point."""
        places = min(k, self.predictions.labels.shape[1])
        return [self.hit_card(point, i) for i in range(places) if self.predictions.labels[point, i] >= 0]


def name_of(items: Items, row: int) -> str:
    """The first text of an item that is not blank, else its id."""
    texts = [text for text in items.texts[row].as_py() or () if text.strip()]
    return texts[0] if texts else str(items.ids[row].as_py())


def picture_of(items: Items, rows: list[int]) -> str:
    """The first readable picture of these items as a data URI, or nothing."""
    for row in rows:
        for picture in items.pictures.row(row)[:1]:
            made = small(picture)
            if made is not None:
                return data_uri(made, "image/webp")
    return ""
