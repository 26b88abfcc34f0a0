"""What each signal adds to the scores of hits, relevant or not."""

from __future__ import annotations

import torch

from mufin.evaluate.report.page import Rows, Section, Table, Text
from mufin.evaluate.report.study import Study
from mufin.signals.base import marked

POINTS, TOP = 500, 10


def signals_section(study: Study) -> Section:
    """The mean part of each signal in the scores of the first hits."""
    model, points = study.model, study.sample(POINTS)
    exclude, relevant = (
        model.labels.align(relation[points], study.catalogue.labels)
        for relation in (study.points.exclude, study.points.relevance)
    )
    allowed = torch.from_numpy(study.catalogue.labels.rows(model.labels.items.ids) >= 0)
    device = model.labels.alive.device
    ranked = model.rank(study.query(points), TOP, exclude, allowed.to(device))
    there = ranked.labels >= 0
    hit = marked(ranked.labels, relevant) & there
    rows: Rows = [
        [name, says, _mean(parts, hit), _mean(parts, there & ~hit)]
        for (name, says), parts in zip(model.says.items(), ranked.parts.unbind(-1), strict=True)
    ]
    return Section(
        "signals",
        "What each signal adds",
        [
            Text(
                f"The score of a label is the sum of these parts. Means over the first {TOP} hits of "
                f"{len(points)} random datapoints, of those that are relevant and of the others: a signal "
                "that tells them apart adds more to the former."
            ),
            Table("signals", ["signal", "says", "relevant hits", "other hits"], rows, left=2),
        ],
    )


def _mean(parts: torch.Tensor, chosen: torch.Tensor) -> float:
    return float(parts[chosen].mean()) if bool(chosen.any()) else 0.0
