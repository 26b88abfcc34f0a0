"""The page of `mufin compare`: the paper's bars by category and by popularity, for several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mufin.evaluate.compare import Comparison
from mufin.evaluate.report.figures import Draw, Theme, bare, shortened
from mufin.evaluate.report.page import Figure, Page, Rows, Section, Table, Text
from mufin.version import VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SHOWN = ("P@1", "P@5", "nDCG@5", "R@10", "PSP@5")
CATEGORIES = 8
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")


def write_comparison(found: Comparison, path: Path) -> None:
    """Write the page at `path` and its figures and tables beside it."""
    facts = [
        ("datapoints", f"{found.points:,}"),
        ("runs", ", ".join(found.runs)),
        ("made by", f"mufin {VERSION}"),
    ]
    sections = [_metrics(found), _differences(found), _by_category(found), _by_popularity(found)]
    Page(f"{len(found.runs)} models side by side", facts, sections).write(path)


def _metrics(found: Comparison) -> Section:
    names = [name for name in next(iter(found.runs.values())).metrics if name != "points"]
    rows: Rows = [[name, *(run.metrics[name] for run in found.runs.values())] for name in names]
    runs = list(found.runs.values())

    def draw(canvas: Canvas, theme: Theme) -> None:
        values = np.array([[run.metrics[name] for name in SHOWN] for run in runs])
        ends = np.array([[run.intervals[name] for name in SHOWN] for run in runs])  # (runs, metrics, 2)
        error = np.stack([values - ends[..., 0], ends[..., 1] - values], axis=1).clip(min=0)
        _bars(canvas, theme, list(found.runs), values, list(SHOWN), "%", error)

    return Section(
        "metrics",
        "Metrics",
        [
            Figure(
                "metrics", "With 95 % intervals by bootstrap over datapoints.", "Bars of five metrics.", draw
            ),
            Table("metrics", ["metric", *found.runs], rows),
        ],
    )


def _differences(found: Comparison) -> Section:
    section = Section("differences", f"Differences to {found.base}")
    for number, (name, run) in enumerate(list(found.runs.items())[1:], 1):
        rows: Rows = [
            [metric, d.value, d.low, d.high, "< 0.001" if d.p < 0.001 else f"{d.p:.3f}"]
            for metric, d in run.against.items()
        ]
        section.blocks.append(Text(f"{name} less {found.base}:"))
        section.blocks.append(
            Table(f"differences-{number}", ["metric", "difference", "low", "high", "p"], rows)
        )
    section.blocks.append(
        Text(
            "Intervals (95 %) by the paired bootstrap. p, two-sided, by randomisation: how often swapping "
            "the two runs' answers at random, datapoint by datapoint, leaves a difference as large. Not "
            "corrected for the number of comparisons; and what varies from one training to the next is not "
            "in it."
        )
    )
    return section


def _by_category(found: Comparison) -> Section:
    section = Section("categories", "P@5 by category")
    if not found.category_sizes:
        section.blocks.append(Text("The items have no categories: there is nothing to group by."))
        return section
    order = sorted(found.category_sizes, key=lambda name: -found.category_sizes[name])
    top = order[:CATEGORIES]
    values = np.array([[run.categories[name] for name in top] for run in found.runs.values()])
    labels = [f"{shortened(name, 22)}\n({found.category_sizes[name]:,})" for name in top]
    more = f" The {len(top)} largest of {len(order)}." if len(order) > len(top) else ""
    section.blocks.extend(
        [
            Figure(
                "categories",
                f"P@5 of each run over the datapoints of a category, whose number is in brackets.{more}",
                "Bars of P@5 by category.",
                _across(list(found.runs), values, labels, "P@5, %"),
                (8.0, 1.1 + 0.22 * len(top) * (len(found.runs) + 1)),
            ),
            Table(
                "categories",
                ["category", "labels", "datapoints", *found.runs],
                [
                    [
                        name,
                        found.category_labels[name],
                        found.category_sizes[name],
                        *(run.categories[name] for run in found.runs.values()),
                    ]
                    for name in order
                ],
            ),
        ]
    )
    return section


def _by_popularity(found: Comparison) -> Section:
    values = np.array([run.bins for run in found.runs.values()])
    kinds = ["rarest", "", "", "", "most popular"]
    labels = [f"{size:,} labels\n{kind}" for size, kind in zip(found.bin_sizes, kinds, strict=True)]

    def draw(canvas: Canvas, theme: Theme) -> None:
        _bars(canvas, theme, list(found.runs), values, labels, "part of R@10, %")

    rows: Rows = [[f"bin {i + 1}", size, *values[:, i].tolist()] for i, size in enumerate(found.bin_sizes)]
    caption = (
        "What labels of five popularity bins add to R@10: each bin has about the same number of training "
        "pairs, and a run's bars add up to its R@10."
    )
    return Section(
        "popularity",
        "R@10 by popularity of labels",
        [
            Figure("popularity", caption, "Bars of parts of R@10 by popularity.", draw),
            Table("popularity", ["bin", "labels", *found.runs], rows),
        ],
    )


def _bars(
    canvas: Canvas,
    theme: Theme,
    runs: Sequence[str],
    values: np.ndarray,
    labels: Sequence[str],
    unit: str,
    error: np.ndarray | None = None,
) -> None:
    """Groups of upright bars, a group a column of `values` (runs, groups)."""
    axes = canvas.subplots()
    width = 0.8 / len(runs)
    for i, name in enumerate(runs):
        place = np.arange(values.shape[1]) + (i - (len(runs) - 1) / 2) * width
        axes.bar(
            place, values[i], width * 0.92, label=shortened(name, 40), color=theme.series[i % 8],
            hatch=HATCHES[i % 8], edgecolor=theme.paper, linewidth=0,
            yerr=None if error is None else error[i], ecolor=theme.text,
        )  # fmt: skip
    axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel(unit)
    canvas.legend(loc="outside upper center", ncols=min(3, len(runs)))
    bare(axes, theme, "y")


def _across(runs: Sequence[str], values: np.ndarray, labels: Sequence[str], unit: str) -> Draw:
    """The same with bars from left to right, for long names."""

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        height = 0.8 / len(runs)
        for i, name in enumerate(runs):
            place = np.arange(values.shape[1]) + (i - (len(runs) - 1) / 2) * height
            axes.barh(
                place, values[i], height * 0.92, label=shortened(name, 40), color=theme.series[i % 8],
                hatch=HATCHES[i % 8], edgecolor=theme.paper, linewidth=0,
            )  # fmt: skip
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        canvas.legend(loc="outside upper center", ncols=min(3, len(runs)))
        bare(axes, theme, "x")

    return draw
