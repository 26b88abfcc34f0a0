"""Section: the mean contribution of each signal to the scores of relevant and irrelevant hits."""

from __future__ import annotations

import torch

from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.page import Rows, Section, Table, Text
from mufin.signals.base import marked

SAMPLED_POINTS = 500
HITS_PER_POINT = 10


def signals_section(data: ReportData) -> Section:
    """The mean contribution of each signal to the scores of the first hits."""
    model, points = data.model, data.sample(SAMPLED_POINTS)
    exclude, relevant = (
        model.labels.align(relation[points], data.catalogue.labels)
        for relation in (data.points.exclude, data.points.relevance)
    )
    allowed = torch.from_numpy(data.catalogue.labels.rows(model.labels.items.ids) >= 0)
    device = model.labels.alive.device
    ranked = model.rank(data.query(points), HITS_PER_POINT, exclude, allowed.to(device))
    exists = ranked.labels >= 0
    is_relevant = marked(ranked.labels, relevant) & exists
    rows: Rows = [
        [name, description, _mean(parts, is_relevant), _mean(parts, exists & ~is_relevant)]
        for (name, description), parts in zip(model.says.items(), ranked.parts.unbind(-1), strict=True)
    ]
    return Section(
        "signals",
        "Contribution of each signal",
        [
            Text(
                f"The score of a label is the sum of these contributions. Means over the first "
                f"{HITS_PER_POINT} hits of {len(points)} random datapoints: a useful signal adds more to "
                "relevant hits than to others."
            ),
            Table("signals", ["signal", "measures", "relevant hits", "other hits"], rows, text_columns=2),
        ],
    )


def _mean(parts: torch.Tensor, chosen: torch.Tensor) -> float:
    return float(parts[chosen].mean()) if bool(chosen.any()) else 0.0
