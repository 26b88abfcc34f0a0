"""Sections: predictions for random queries, and one query answered from text, images and both."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from mufin.data.ragged import Ints
from mufin.encode.features import Groups
from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.page import Block, Gallery, QueryRow, Rows, Section, Table, Text
from mufin.progress import count
from mufin.signals.base import marked

Modality = Literal["both", "text", "image"]
EXAMPLE_QUERIES = 12
HITS_PER_QUERY = 6
MODALITY_POINTS = 200  # datapoints ranked from each modality
MODALITY_NAMES: dict[Modality, str] = {
    "both": "text and images",
    "text": "text only",
    "image": "images only",
}


def examples_section(data: ReportData) -> Section:
    """Predictions for random queries, good or bad."""
    labelled = np.flatnonzero(np.diff(data.points.relevance.indptr) > 0)
    rows = [
        QueryRow(
            data.point_card(int(i), count(len(data.truth(int(i))), "relevant label")),
            data.hit_cards(int(i), HITS_PER_QUERY),
        )
        for i in data.sample(EXAMPLE_QUERIES, labelled)
    ]
    return Section(
        "examples",
        "Example predictions",
        [Text(f"{len(rows)} random queries and their best labels, in order."), Gallery(rows)],
    )


def modalities_section(data: ReportData) -> Section:
    """What each modality finds on its own, as in Figure 1 of the paper."""
    return Section("modalities", "Text only, images only, both", _modalities(data))


def _modalities(data: ReportData) -> list[Block]:
    modality = data.model.config.modalities
    if modality != "both":
        return [Text(f"This model reads {MODALITY_NAMES[modality]}, so there is nothing to compare.")]
    usable = _points_with_both(data)
    if not len(usable):
        return [Text("No datapoint of this split has both text and images.")]
    points = data.sample(MODALITY_POINTS, usable)
    hits = {modality: _rank(data, points, modality) for modality in MODALITY_NAMES}
    relevance = data.points.relevance[points]
    relevant = {
        modality: marked(torch.from_numpy(rows), relevance).numpy() for modality, rows in hits.items()
    }
    gain = relevant["both"].sum(1) - np.maximum(relevant["text"].sum(1), relevant["image"].sum(1))
    chosen = int(np.argmax(gain))
    rows = [
        QueryRow(
            data.point_card(int(points[chosen])),
            [
                data.label_card(int(label), bool(relevant[modality][chosen, rank]))
                for rank, label in enumerate(hits[modality][chosen])
                if label >= 0
            ],
            f"From {name}",
        )
        for modality, name in MODALITY_NAMES.items()
    ]
    precision: Rows = [[name, 100 * float(relevant[m].mean())] for m, name in MODALITY_NAMES.items()]
    return [
        Text(
            "The same model, queried with text and images, with text only and with images only. Of "
            f"{len(points)} random datapoints that have both, this one gains most from having both."
        ),
        Gallery(rows),
        Text(f"P@{HITS_PER_QUERY} over all {len(points)} datapoints:"),
        Table("modalities", ["query", f"P@{HITS_PER_QUERY}"], precision),
    ]


def _points_with_both(data: ReportData) -> Ints:
    """The datapoints that have both text and images."""
    images, texts = data.catalogue.items.pictures.counts(), np.diff(data.features.text.offsets)
    both = [
        i
        for i in range(len(data))
        if any(images[row] for row in data.members(i)) and any(texts[row] for row in data.members(i))
    ]
    return np.asarray(both, np.int64)


def _rank(data: ReportData, points: Ints, modality: Modality) -> Ints:
    """The best labels (B, k) of these datapoints from one modality, as rows of the catalogue's labels."""
    model, groups = data.model, data.groups.take(points)
    used, members = np.unique(groups.members, return_inverse=True)
    features = model.features(data.catalogue.items.take(used).only(modality), cached=True)
    query = model.query(features, Groups(groups.offsets, members.astype(np.int64)))
    exclude = model.labels.align(data.points.exclude[points], data.catalogue.labels)
    catalogue_rows = data.catalogue.labels.rows(model.labels.items.ids)
    allowed = torch.from_numpy(catalogue_rows >= 0).to(model.labels.alive.device)
    rows = model.rank(query, HITS_PER_QUERY, exclude, allowed).labels.cpu().numpy()
    return np.where(rows >= 0, catalogue_rows[rows], -1)
