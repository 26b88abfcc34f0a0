"""ReportData: a model's predictions on a split and the truth, which all sections of a report read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from mufin.data.catalogue import Catalogue
from mufin.data.images import thumbnail
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.data.split import Split
from mufin.encode.features import Features, Groups
from mufin.evaluate.bins import categories_of
from mufin.evaluate.per_point import FloatArray
from mufin.evaluate.report.figures import truncate
from mufin.evaluate.report.page import Card, data_uri
from mufin.evaluate.score import Predictions, training_relevance
from mufin.model.mufin import Mufin
from mufin.signals.base import Query, marked

CARD_CHARACTERS = 90


@dataclass(frozen=True)
class ReportData:
    """A model, the datapoints of a split and the predictions for them; label rows are the catalogue's."""

    model: Mufin
    catalogue: Catalogue
    points: Split
    features: Features
    predictions: Predictions
    propensity: tuple[float, float]
    category: str  # name of the column of items
    seed: int = 0

    def __len__(self) -> int:
        return len(self.points)

    @property
    def rng(self) -> np.random.Generator:
        """A fresh generator, so that every report makes the same choices."""
        return np.random.default_rng(self.seed)

    @cached_property
    def relevant(self) -> npt.NDArray[np.bool_]:
        """Which predicted labels are relevant, (n, k)."""
        return marked(torch.from_numpy(self.predictions.labels), self.points.relevance).numpy()

    @cached_property
    def frequency(self) -> Ints:
        """Number of training points with each label, (L,)."""
        return np.asarray(training_relevance(self.catalogue, self.points).sum(axis=0), np.int64).ravel()

    @cached_property
    def model_rows(self) -> Ints:
        """The model's row of each label of the catalogue, −1 if the model lacks it; (L,)."""
        rows = self.model.labels.items.rows(self.catalogue.labels.ids)
        alive = self.model.labels.alive.cpu().numpy()
        return np.where((rows >= 0) & alive[rows], rows, -1)

    @cached_property
    def groups(self) -> Groups:
        return Groups(self.points.offsets, self.points.members)

    def query(self, points: Ints) -> Query:
        """Embed these datapoints for ranking."""
        return self.model.query(self.features, self.groups.take(points))

    def members(self, point: int) -> list[int]:
        """The item rows of a datapoint."""
        offsets = self.points.offsets
        return [int(row) for row in self.points.members[offsets[point] : offsets[point + 1]]]

    def truth(self, point: int) -> list[int]:
        """The relevant labels of a datapoint."""
        ends = self.points.relevance.indptr
        return [int(label) for label in self.points.relevance.indices[ends[point] : ends[point + 1]]]

    def sample(self, wanted: int, among: npt.NDArray[np.integer] | None = None) -> Ints:
        """Draw datapoints at random, without replacement."""
        pool = np.arange(len(self)) if among is None else among
        chosen = self.rng.choice(pool, min(wanted, len(pool)), replace=False)
        return np.asarray(chosen, np.int64)

    @cached_property
    def categories(self) -> list[str] | None:
        """The category of each datapoint (of its first item), or None if items have no such column."""
        first = self.points.members[self.points.offsets[:-1]]
        return categories_of(self.catalogue.items, first, self.category)

    def label_categories(self, rows: Ints) -> list[str] | None:
        """The category of each of these labels, or None if labels have no such column."""
        return categories_of(self.catalogue.labels, rows, self.category)

    # -- cards -----------------------------------------------------------------------------------------------

    def point_card(self, point: int, note: str = "") -> Card:
        """A datapoint: the names of its items and the first image."""
        rows = self.members(point)
        names = " + ".join(display_name(self.catalogue.items, row) for row in rows)
        return Card(truncate(names, CARD_CHARACTERS), note, first_image(self.catalogue.items, rows))

    def label_card(self, label: int, relevant: bool | None = None, note: str = "", mark: str = "") -> Card:
        """A label: its name and its first image."""
        labels = self.catalogue.labels
        name = truncate(display_name(labels, label), CARD_CHARACTERS)
        return Card(name, note, first_image(labels, [label]), relevant, mark)

    def hit_cards(self, point: int, k: int) -> list[Card]:
        """The k best predictions for a datapoint; labels of the same name have their ids beside it."""
        found = self.predictions.labels[point]
        ranks = [rank for rank in range(min(k, len(found))) if found[rank] >= 0]
        names = Counter(display_name(self.catalogue.labels, int(found[rank])) for rank in ranks)
        return [self._hit_card(point, rank, names) for rank in ranks]

    def _hit_card(self, point: int, rank: int, names: Counter[str]) -> Card:
        label = int(self.predictions.labels[point, rank])
        note = f"probability {self.predictions.probability[point, rank]:.0%}"
        if names[display_name(self.catalogue.labels, label)] > 1:
            note = f"{self.catalogue.labels.ids[label].as_py()} · {note}"
        return self.label_card(label, bool(self.relevant[point, rank]), note)


def half_width(values: FloatArray) -> float:
    """Half the width of the 95 % interval of the mean, by the normal approximation."""
    return float(1.96 * values.std() / np.sqrt(max(1, len(values))))


def display_name(items: Items, row: int) -> str:
    """The first non-blank text of an item, or its id."""
    texts = [text for text in items.texts[row].as_py() or () if text.strip()]
    return texts[0] if texts else str(items.ids[row].as_py())


def first_image(items: Items, rows: list[int]) -> str:
    """The first readable image of these items as a data URI, or an empty string."""
    for row in rows:
        for image in items.pictures.row(row)[:1]:
            encoded = thumbnail(image)
            if encoded is not None:
                return data_uri(encoded, "image/webp")
    return ""
