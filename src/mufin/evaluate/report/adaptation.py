"""Section: how cross-attention adapts a datapoint to a label, in 2-D."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.figures import Draw, Theme, hide_axes
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.ragged import Ints
from mufin.retrieve.project_2d import Floats, project_2d

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SAMPLED_POINTS = 60


def adaptation_section(data: ReportData) -> Section:
    """x̂¹, x̂²⁺, x̂²⁻, w₊ and w₋ of some datapoints, projected together."""
    section = Section("adaptation", "Adapting datapoints to labels")
    triples = _triples(data)
    if not len(triples):
        section.blocks.append(
            Text("No datapoint has both a relevant and an irrelevant label among its hits.")
        )
        return section
    vectors, cosines = _vectors(data, triples)
    adapts = data.model.ranker.adapts
    if not adapts:
        vectors = {name: v for name, v in vectors.items() if not name.startswith("x̂²")}
        section.blocks.append(
            Text("This model does not adapt datapoints to labels (rank.cross is “none”): x̂² is x̂¹.")
        )
    points, method = project_2d(np.concatenate(list(vectors.values())))
    places = dict(zip(vectors, np.split(points, len(vectors)), strict=True))
    adapted = ", and the datapoint adapted to each (x̂²⁺, x̂²⁻)" if adapts else ""
    caption = (
        f"{method} of {len(triples)} datapoints x̂¹ with the classifiers of their best relevant (w₊) and best "
        f"irrelevant hit (w₋){adapted}. Lines connect the vectors of a typical datapoint, the one with the "
        "median distance from x̂¹ to w₊."
    )
    draw = _draw_vectors(places, _typical(places))
    section.blocks.append(
        Figure("adaptation", caption, f"Scatter plot of {len(vectors)} kinds of vectors.", draw, (8, 4.6))
    )
    section.blocks.append(Table("adaptation", ["mean cosine", "relevant label", "irrelevant label"], cosines))
    return section


def _triples(data: ReportData) -> Ints:
    """(B, 3): a datapoint, its best relevant hit and its best irrelevant hit."""
    relevant, labels = data.relevant, data.predictions.labels
    usable = np.flatnonzero(relevant.any(axis=1) & (~relevant & (labels >= 0)).any(axis=1))
    points = data.sample(SAMPLED_POINTS, usable)
    good = labels[points, relevant[points].argmax(axis=1)]
    bad = labels[points, (~relevant[points]).argmax(axis=1)]
    return np.stack([points, good, bad], axis=1)


@torch.no_grad()
def _vectors(data: ReportData, triples: Ints) -> tuple[dict[str, Floats], Rows]:
    """The five vectors of each datapoint, (B, D) each, and mean cosines before and after adaptation."""
    labels, bags = data.model.labels, data.query(triples[:, 0]).bags
    x = bags.take(torch.arange(len(bags), device=bags.rows.device))
    rows = torch.from_numpy(data.model_rows[triples[:, 1:]]).to(bags.rows.device)  # (B, 2)
    adapted = data.model.ranker.adapted(x, labels.bags.take(rows))  # (B, 2, D)
    w, plain = labels.classifiers(rows), x.vector()
    before, after = ((v * w).sum(-1).mean(0).tolist() for v in (plain[:, None], adapted))
    cosines: Rows = [["x̂¹ with w", *before], ["x̂² with w", *after]]
    named = {"x̂¹": plain, "x̂²⁺": adapted[:, 0], "x̂²⁻": adapted[:, 1], "w₊": w[:, 0], "w₋": w[:, 1]}
    return {name: v.float().cpu().numpy() for name, v in named.items()}, cosines


def _typical(places: dict[str, Floats]) -> int:
    """The datapoint with the median distance from x̂¹ to w₊."""
    distance = np.linalg.norm(places["x̂¹"] - places["w₊"], axis=1)
    return int(np.argsort(distance)[len(distance) // 2])


def _draw_vectors(places: dict[str, Floats], typical: int) -> Draw:
    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        blue, orange, green = theme.series[0], theme.series[1], theme.series[2]
        styles = {
            "x̂¹": ("o", blue), "x̂²⁺": ("*", green), "x̂²⁻": ("*", orange),
            "w₊": ("^", green), "w₋": ("v", orange),
        }  # fmt: skip
        for name, points in places.items():
            marker, colour = styles[name]
            x, y = points.T
            axes.scatter(x, y, s=26, marker=marker, color=colour, alpha=0.45, linewidths=0, label=name)
        centre = places["x̂¹"][typical]
        for name, points in places.items():
            marker, colour = styles[name]
            x, y = points[typical]
            axes.plot([centre[0], x], [centre[1], y], color=theme.text, linewidth=0.9)
            axes.scatter(x, y, s=120, marker=marker, color=colour, edgecolors=theme.text, zorder=3)
        hide_axes(axes)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=1.6)

    return draw
