"""Vectors in the plane: what adaptation does to a datapoint, and where the classifiers lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from mufin.evaluate.report.figures import MARKERS, Draw, Theme, bare, shortened
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.evaluate.report.study import Study, name_of
from mufin.ragged import Ints
from mufin.retrieve.project_2d import project_2d

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

Floats = npt.NDArray[np.float32]
POINTS = 60  # datapoints whose five vectors are shown
LABELS = 10_000  # classifiers beyond these are sampled
CLUSTERS = 6
NAMED = 5  # categories with a colour of their own


def adaptation_section(study: Study) -> Section:
    """x̂¹, x̂²⁺, x̂²⁻, w₊ and w₋ of some datapoints in one plane."""
    section = Section("adaptation", "How labels adapt a datapoint")
    triples = _triples(study)
    if not len(triples):
        section.blocks.append(
            Text("No datapoint has both a relevant and an irrelevant label among its hits.")
        )
        return section
    vectors, cosines = _vectors(study, triples)
    adapts = study.model.ranker.adapts
    if not adapts:
        vectors = {name: v for name, v in vectors.items() if not name.startswith("x̂²")}
        section.blocks.append(
            Text("This model does not adapt datapoints to labels (rank.cross is “none”): x̂² is x̂¹.")
        )
    at, how = project_2d(np.concatenate(list(vectors.values())))
    places = dict(zip(vectors, np.split(at, len(vectors)), strict=True))
    shown = _typical(places)
    caption = (
        f"{how} of {len(triples)} datapoints x̂¹ with the classifiers of their best relevant (w₊) and best "
        "irrelevant hit (w₋)"
        + (", and the datapoint adapted to each (x̂²⁺, x̂²⁻)" if adapts else "")
        + ". Lines join the vectors of a typical datapoint: the one with the median distance from x̂¹ to w₊."
    )
    section.blocks.extend(
        [
            Figure(
                "adaptation",
                caption,
                "Scatter of five kinds of vectors.",
                _draw_adaptation(places, shown),
                (8, 4.6),
            ),
            Table("adaptation", ["mean cosine", "relevant label", "irrelevant label"], cosines),
        ]
    )
    return section


def _triples(study: Study) -> Ints:
    """(B, 3): a point, its best relevant hit and its best irrelevant hit."""
    relevant, labels = study.relevant, study.predictions.labels
    useful = np.flatnonzero(relevant.any(axis=1) & (~relevant & (labels >= 0)).any(axis=1))
    points = study.sample(POINTS, useful)
    good = labels[points, relevant[points].argmax(axis=1)]
    bad = labels[points, (~relevant[points]).argmax(axis=1)]
    return np.stack([points, good, bad], axis=1)


@torch.no_grad()
def _vectors(study: Study, triples: Ints) -> tuple[dict[str, Floats], Rows]:
    """The five vectors of each point, (B, D) each; and the mean cosines before and after adaptation."""
    labels, bags = study.model.labels, study.query(triples[:, 0]).bags
    x = bags.take(torch.arange(len(bags), device=bags.rows.device))
    rows = torch.from_numpy(study.model_rows[triples[:, 1:]]).to(bags.rows.device)  # (B, 2)
    adapted = study.model.ranker.adapted(x, labels.bags.take(rows))  # (B, 2, D)
    w, plain = labels.classifiers(rows), x.vector()
    before, after = ((v * w).sum(-1).mean(0).tolist() for v in (plain[:, None], adapted))
    cosines: Rows = [["x̂¹ with w", *before], ["x̂² with w", *after]]
    named = {"x̂¹": plain, "x̂²⁺": adapted[:, 0], "x̂²⁻": adapted[:, 1], "w₊": w[:, 0], "w₋": w[:, 1]}
    return {name: v.float().cpu().numpy() for name, v in named.items()}, cosines


def _typical(places: dict[str, Floats]) -> int:
    """A typical datapoint: the one whose distance from x̂¹ to w₊ is the median."""
    distance = np.linalg.norm(places["x̂¹"] - places["w₊"], axis=1)
    return int(np.argsort(distance)[len(distance) // 2])


def _draw_adaptation(places: dict[str, Floats], shown: int) -> Draw:
    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        blue, orange, green = theme.series[0], theme.series[1], theme.series[2]
        looks = {
            "x̂¹": ("o", blue), "x̂²⁺": ("*", green), "x̂²⁻": ("*", orange),
            "w₊": ("^", green), "w₋": ("v", orange),
        }  # fmt: skip
        for name, at in places.items():
            marker, colour = looks[name]
            axes.scatter(
                at[:, 0], at[:, 1], s=26, marker=marker, color=colour, alpha=0.45, linewidths=0, label=name
            )
        centre = places["x̂¹"][shown]
        for name, at in places.items():
            marker, colour = looks[name]
            axes.plot(*zip(centre, at[shown], strict=True), color=theme.text, linewidth=0.9)
            axes.scatter(
                at[shown, 0],
                at[shown, 1],
                s=120,
                marker=marker,
                color=colour,
                edgecolors=theme.text,
                zorder=3,
            )
        _flat(axes, theme)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=1.6)

    return draw


def classifiers_section(study: Study) -> Section:
    """All w_l in one plane, coloured by category, or by cluster where labels have no category."""
    rows = np.flatnonzero(study.model_rows >= 0)
    if len(rows) > LABELS:
        rows = np.sort(study.rng.choice(rows, LABELS, replace=False))
    weights = study.model.labels.weights[torch.from_numpy(study.model_rows[rows])].float().cpu().numpy()
    at, how = project_2d(weights)
    categories = study.label_categories(rows)
    if categories is None:
        names, group = _clusters(study, rows, weights)
        by = (
            f"{len(names)} clusters (k-means), since labels have no column “{study.category}”; each is named "
            "by its two most popular labels"
        )
    else:
        names, group = _largest(categories)
        by = f"their {NAMED} most frequent categories"

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        rest = at[group < 0]
        for number, name in enumerate(names):
            own = at[group == number]
            axes.scatter(
                own[:, 0], own[:, 1], s=9, marker=MARKERS[number], color=theme.series[number], linewidths=0,
                alpha=0.75, rasterized=True, label=shortened(name, 40),
            )  # fmt: skip
        if len(rest):
            axes.scatter(
                rest[:, 0],
                rest[:, 1],
                s=4,
                color=theme.faint,
                linewidths=0,
                rasterized=True,
                label="others",
                zorder=0,
            )
        _flat(axes, theme)
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, markerscale=2.5, fontsize=9,
        )  # fmt: skip

    total = int((study.model_rows >= 0).sum())
    which = f"all {total:,}" if len(rows) == total else f"{len(rows):,} of {total:,} (at random)"
    return Section(
        "classifiers",
        "Classifiers",
        [
            Figure(
                "classifiers",
                f"{how} of the classifiers w_l of {which} labels, coloured by {by}.",
                f"Scatter of {len(rows)} points in {len(names)} colours.",
                draw,
                (8.0, 6.4),
            )
        ],
    )


def _largest(categories: list[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The names of the most frequent categories, and which of them each label has; −1 for others."""
    found, number, count = np.unique(np.asarray(categories), return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")[:NAMED]
    place = np.full(len(found), -1)
    place[order] = np.arange(len(order))
    return [str(found[i]) for i in order], place[number]


def _clusters(study: Study, rows: Ints, weights: Floats) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Clusters of the classifiers, each named by its two most popular labels."""
    from sklearn.cluster import KMeans

    count = min(CLUSTERS, len(rows))
    found = KMeans(count, n_init=3, random_state=study.seed).fit(weights)
    names = []
    for number in range(count):
        own = np.flatnonzero(found.labels_ == number)
        popular = own[np.argsort(-study.frequency[rows[own]], kind="stable")[:2]]
        names.append(", ".join(shortened(name_of(study.catalogue.labels, int(rows[i])), 18) for i in popular))
    return names, found.labels_.astype(np.int64)


def _flat(axes: Axes, theme: Theme) -> None:
    """The plane has no scale: no ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    bare(axes, theme)
    axes.spines[:].set_visible(False)
