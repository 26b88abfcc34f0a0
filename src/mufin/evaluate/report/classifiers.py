"""Report sections on what training changed: classifiers and adapted bags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from mufin.data.ragged import Ints
from mufin.evaluate.bins import POPULARITY_BINS, popularity_bins
from mufin.evaluate.report.data import ReportData, display_name
from mufin.evaluate.report.figures import MARKERS, Draw, Theme, clean_axes, name_axes, truncate
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.evaluate.score import training_relevance
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
    draw = _draw_vectors(places, method, _typical(places))
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


def _draw_vectors(places: dict[str, Floats], method: str, typical: int) -> Draw:
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
        name_axes(axes, method)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), markerscale=1.6)

    return draw


MAX_CLASSIFIERS = 10_000  # more are sampled
CLUSTERS = 6
COLOURED_CATEGORIES = 5
NO_GROUP = -1
Groups = npt.NDArray[np.int64]  # (labels,) index of a group's name, or NO_GROUP


def classifiers_section(data: ReportData) -> Section:
    """All w_l in 2-D, coloured by category, or by cluster if labels have no category."""
    known = np.flatnonzero(data.model_rows >= 0)
    rows = known
    if len(known) > MAX_CLASSIFIERS:
        rows = np.sort(data.rng.choice(known, MAX_CLASSIFIERS, replace=False))
    weights = data.model.labels.weights[torch.from_numpy(data.model_rows[rows])].float().cpu().numpy()
    points, method = project_2d(weights)
    categories = data.label_categories(rows)
    if categories is None:
        names, groups = _clusters(data, rows, weights)
        grouping = (
            f"{len(names)} k-means clusters, since labels have no column “{data.category}”; each cluster is "
            "named after its two most popular labels"
        )
    else:
        names, groups = _largest_categories(categories)
        grouping = f"the {COLOURED_CATEGORIES} most frequent categories"
    which = f"all {len(known):,}" if len(rows) == len(known) else f"{len(rows):,} random of {len(known):,}"
    figure = Figure(
        "classifiers",
        f"{method} of the classifiers w of {which} labels, coloured by {grouping}.",
        f"Scatter plot of {len(rows)} points in {len(names)} colours.",
        _draw_map(points, method, names, groups),
        (8.0, 6.4),
    )
    return Section("classifiers", "Map of the classifiers", [figure])


def _draw_map(points: Floats, method: str, names: list[str], groups: Groups) -> Draw:
    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        area = float(np.clip(9_000 / len(points), 9, 30))  # of a dot; a few labels need larger ones
        for number, name in enumerate(names):
            x, y = points[groups == number].T
            axes.scatter(
                x, y, s=area, marker=MARKERS[number], color=theme.series[number], linewidths=0, alpha=0.75,
                rasterized=True, label=truncate(name, 40),
            )  # fmt: skip
        if (groups == NO_GROUP).any():
            x, y = points[groups == NO_GROUP].T
            axes.scatter(
                x, y, s=4, color=theme.muted, linewidths=0, rasterized=True, label="others", zorder=0
            )
        name_axes(axes, method)
        scale = 7.5 / area**0.5  # the same size in all legends
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.05), ncols=2, markerscale=scale, fontsize=9)

    return draw


def _largest_categories(categories: list[str]) -> tuple[list[str], Groups]:
    """The most frequent categories, and the one of each label."""
    found, number, count = np.unique(np.asarray(categories), return_inverse=True, return_counts=True)
    order = np.argsort(-count, kind="stable")[:COLOURED_CATEGORIES]
    group_of = np.full(len(found), NO_GROUP)
    group_of[order] = np.arange(len(order))
    return [str(found[i]) for i in order], group_of[number]


def _clusters(data: ReportData, rows: Ints, weights: Floats) -> tuple[list[str], Groups]:
    """k-means clusters of the classifiers, each named after its two most popular labels."""
    from sklearn.cluster import KMeans

    count = min(CLUSTERS, len(rows))
    found = KMeans(count, n_init=3, random_state=data.seed).fit(weights)
    names = []
    for number in range(count):
        members = np.flatnonzero(found.labels_ == number)
        popular = members[np.argsort(-data.frequency[rows[members]], kind="stable")[:2]]
        labels = [display_name(data.catalogue.labels, int(rows[i])) for i in popular]
        names.append(", ".join(truncate(label, 18) for label in labels))
    return names, found.labels_.astype(np.int64)


def alpha_section(data: ReportData) -> Section:
    """The histogram of α_l, and α by popularity."""
    section = Section("alpha", "α: content or free vector")
    known = np.flatnonzero(data.model_rows >= 0)
    alpha = data.model.labels.alpha.float().cpu().numpy()[data.model_rows[known]]
    section.blocks.append(
        Text("w = N(α ẑ + (1 − α) N(η)): at α = 1 a classifier depends only on the content of its label.")
    )
    if data.model.config.rank.alpha == "one":
        section.blocks.append(Text("This model has no free vectors: α is 1 for every label."))
        return section
    bins = popularity_bins(training_relevance(data.catalogue, data.points))[known]
    median = f"{np.median(alpha):.2f}" if len(alpha) else "–"
    caption = (
        f"Left: α of {len(alpha):,} labels, median {median}; {np.mean(alpha > 0.99):.0%} are 1 (untrained). "
        f"Right: α in {POPULARITY_BINS} popularity bins (median, quartiles, range without outliers)."
    )
    draw = _draw_alpha(alpha, [alpha[bins == i] for i in range(POPULARITY_BINS)])
    section.blocks.append(Figure("alpha", caption, f"Histogram of α, median {median}.", draw))
    return section


def _draw_alpha(alpha: Floats, by_popularity: list[Floats]) -> Draw:
    def draw(canvas: Canvas, theme: Theme) -> None:
        left, right = canvas.subplots(1, 2, width_ratios=(3, 2))
        left.hist(alpha, bins=50, range=(0, 1), color=theme.good)
        left.set_xlabel("α")
        left.set_ylabel("labels")
        clean_axes(left, theme, "y")
        values = [group if len(group) else [np.nan] for group in by_popularity]
        box = right.boxplot(values, showfliers=False, patch_artist=True, widths=0.6)
        for part in box["boxes"]:
            part.set(facecolor=theme.good, edgecolor=theme.text)
        for part in (*box["whiskers"], *box["caps"], *box["medians"]):
            part.set(color=theme.text)
        names = ["rarest", *([""] * (POPULARITY_BINS - 2)), "most\npopular"]
        right.set_xticks(range(1, POPULARITY_BINS + 1), names)
        right.set_xlabel("labels by popularity")
        right.set_ylabel("α")
        right.set_ylim(-0.03, 1.03)
        clean_axes(right, theme, "y")

    return draw
