"""What was found for some queries; and one query answered from its text, its pictures, and both."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from mufin.encode.features import Groups
from mufin.evaluate.report.page import Block, Gallery, Row, Rows, Section, Table, Text
from mufin.evaluate.report.study import Study
from mufin.ragged import Ints
from mufin.signals.base import marked

QUERIES, SHOWN = 12, 6
TRIED = 200  # points that are asked three times
WAYS: dict[Literal["both", "text", "image"], str] = {
    "both": "text and pictures",
    "text": "text alone",
    "image": "pictures alone",
}


def examples_section(study: Study) -> Section:
    """Random queries, not the ones that went well."""
    labelled = np.flatnonzero(np.diff(study.points.relevance.indptr) > 0)
    rows = [
        Row(
            study.point_card(int(i), f"{len(study.truth(int(i)))} relevant labels"), study.best(int(i), SHOWN)
        )
        for i in study.sample(QUERIES, labelled)
    ]
    return Section(
        "examples",
        "What was found",
        [Text(f"{len(rows)} queries at random, each with its best labels in order."), Gallery(rows)],
    )


def modalities_section(study: Study) -> Section:
    """The paper's first figure: what each modality finds by itself."""
    return Section("modalities", "Text alone, pictures alone, both", _modalities(study))


def _modalities(study: Study) -> list[Block]:
    reads = study.model.config.modalities
    if reads != "both":
        return [Text(f"This model reads {WAYS[reads]}: there is nothing to take away.")]
    counts = study.catalogue.items.pictures.counts()
    texts = np.diff(study.features.text.offsets)
    both = [
        i
        for i in range(len(study))
        if any(counts[row] for row in study.members(i)) and any(texts[row] for row in study.members(i))
    ]
    if not both:
        return [Text("No datapoint of this split has both texts and pictures.")]
    points = study.sample(TRIED, np.asarray(both))
    answers = {way: _answers(study, points, way) for way in WAYS}
    relevance = study.points.relevance[points]
    good = {way: marked(torch.from_numpy(rows), relevance).numpy() for way, rows in answers.items()}
    more = good["both"].sum(1) - np.maximum(good["text"].sum(1), good["image"].sum(1))
    chosen = int(np.argmax(more))
    rows = [
        Row(
            study.point_card(int(points[chosen])),
            [
                study.label_card(int(label), bool(good[way][chosen, place]))
                for place, label in enumerate(answers[way][chosen])
                if label >= 0
            ],
            f"From {name}",
        )
        for way, name in WAYS.items()
    ]
    measured: Rows = [[name, 100 * float(good[way].mean())] for way, name in WAYS.items()]
    return [
        Text(
            "One model, asked three times: with all it knows of a datapoint, with its texts, with its "
            f"pictures. Of {len(points)} random datapoints that have both, this is the one that gains most "
            "from having both."
        ),
        Gallery(rows),
        Text(f"P@{SHOWN} of the same model over all {len(points)}:"),
        Table("modalities", ["asked with", f"P@{SHOWN}"], measured),
    ]


def _answers(study: Study, points: Ints, way: Literal["both", "text", "image"]) -> Ints:
    """The best labels (B, k) of these points from one modality, as rows of the catalogue's labels."""
    model, groups = study.model, study.groups.take(points)
    used, members = np.unique(groups.members, return_inverse=True)
    features = model.features(study.catalogue.items.take(used).only(way), cached=True)
    query = model.query(features, Groups(groups.offsets, members.astype(np.int64)))
    exclude = model.labels.align(study.points.exclude[points], study.catalogue.labels)
    known = study.catalogue.labels.rows(model.labels.items.ids)
    allowed = torch.from_numpy(known >= 0).to(model.labels.alive.device)
    rows = model.rank(query, SHOWN, exclude, allowed).labels.cpu().numpy()
    return np.where(rows >= 0, known[rows], -1)
