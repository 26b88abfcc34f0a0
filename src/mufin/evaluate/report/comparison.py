"""The page of `mufin compare`: metrics, differences, and bars by category and popularity for several runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mufin.evaluate.bins import POPULARITY_BINS
from mufin.evaluate.compare import Comparison
from mufin.evaluate.report.figures import Draw, Theme, clean_axes, truncate
from mufin.evaluate.report.page import Figure, Page, Rows, Section, Table, Text
from mufin.progress import count
from mufin.version import VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

PLOTTED_METRICS = ("P@1", "P@5", "nDCG@5", "R@10", "PSP@5")
PLOTTED_CATEGORIES = 8
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write the page to `path`, with figures and tables beside it."""
    summary = [
        ("datapoints", f"{comparison.points:,}"),
        ("runs", ", ".join(comparison.runs)),
        ("date", f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC"),
        ("version", f"mufin {VERSION}"),
    ]
    sections = [
        _metrics(comparison),
        _differences(comparison),
        _by_category(comparison),
        _by_popularity(comparison),
    ]
    Page(f"Comparison of {len(comparison.runs)} models", summary, sections).write(path)


def _metrics(comparison: Comparison) -> Section:
    runs = list(comparison.runs.values())
    names = [name for name in runs[0].metrics if name != "points"]
    rows: Rows = [[name, *(run.metrics[name] for run in runs)] for name in names]
    values = np.array([[run.metrics[name] for name in PLOTTED_METRICS] for run in runs])
    ends = np.array([[run.intervals[name] for name in PLOTTED_METRICS] for run in runs])  # (runs, metrics, 2)
    error = np.stack([values - ends[..., 0], ends[..., 1] - values], axis=1).clip(min=0)
    draw = _bars(list(comparison.runs), values, PLOTTED_METRICS, ("metric", "%"), error)
    return Section(
        "metrics",
        "Metrics",
        [
            Figure(
                "metrics", "With 95 % bootstrap intervals over datapoints.", "Bars of five metrics.", draw
            ),
            Table("metrics", ["metric", *comparison.runs], rows),
        ],
    )


def _differences(comparison: Comparison) -> Section:
    section = Section("differences", f"Differences from {comparison.base}")
    for number, (name, run) in enumerate(list(comparison.runs.items())[1:], 1):
        rows: Rows = [
            [metric, d.value, d.low, d.high, "< 0.001" if d.p < 0.001 else f"{d.p:.3f}"]
            for metric, d in run.against.items()
        ]
        section.blocks.append(Text(f"{name} − {comparison.base}:"))
        header = ["metric", "difference", "low", "high", "p"]
        section.blocks.append(Table(f"differences-{number}", header, rows))
    section.blocks.append(
        Text(
            "95 % intervals and two-sided p-values of one paired bootstrap over datapoints: an interval "
            "excludes zero exactly if p < 0.05. They are not corrected for multiple comparisons and do not "
            "include variation between training runs."
        )
    )
    return section


def _by_category(comparison: Comparison) -> Section:
    section = Section("categories", "P@5 by category")
    sizes = comparison.category_sizes
    if not sizes:
        section.blocks.append(Text("The items have no categories to group by."))
        return section
    runs = list(comparison.runs.values())
    order = sorted(sizes, key=lambda name: -sizes[name])
    top = order[:PLOTTED_CATEGORIES]
    values = np.array([[run.categories[name] for name in top] for run in runs])
    ticks = [f"{truncate(name, 22)}\n({sizes[name]:,})" for name in top]
    more = f" The {len(top)} largest of {len(order)} categories." if len(order) > len(top) else ""
    rows: Rows = [
        [name, comparison.category_labels[name], sizes[name], *(run.categories[name] for run in runs)]
        for name in order
    ]
    section.blocks.extend([
        Figure(
            "categories",
            f"P@5 of each run by category; the number of datapoints is in parentheses.{more}",
            "Bars of P@5 by category.",
            _bars(list(comparison.runs), values, ticks, ("category (datapoints)", "P@5, %"), horizontal=True),
            (8.0, 1.1 + 0.22 * len(top) * (len(runs) + 1)),
        ),
        Table("categories", ["category", "labels", "datapoints", *comparison.runs], rows),
    ])  # fmt: skip
    return section


def _by_popularity(comparison: Comparison) -> Section:
    values = np.array([run.bins for run in comparison.runs.values()])
    kinds = ["rarest", *([""] * (POPULARITY_BINS - 2)), "most popular"]
    sizes = comparison.bin_sizes
    ticks = [f"{count(size, 'label')}\n{kind}" for size, kind in zip(sizes, kinds, strict=True)]
    rows: Rows = [[f"bin {i + 1}", size, *values[:, i].tolist()] for i, size in enumerate(sizes)]
    caption = (
        f"Contributions to R@10 by label popularity, in {POPULARITY_BINS} bins with about the same number of "
        "training pairs each. The bars of a run add up to its R@10."
    )
    draw = _bars(list(comparison.runs), values, ticks, ("labels by popularity", "contribution to R@10, %"))
    return Section(
        "popularity",
        "R@10 by label popularity",
        [
            Figure("popularity", caption, "Bars of contributions to R@10 by popularity.", draw),
            Table("popularity", ["bin", "labels", *comparison.runs], rows),
        ],
    )


def _bars(
    runs: Sequence[str],
    values: np.ndarray,
    ticks: Sequence[str],
    axis_names: tuple[str, str],  # of the groups and of the values
    error: np.ndarray | None = None,
    horizontal: bool = False,
) -> Draw:
    """Grouped bars, one group per column of `values` (runs, groups); horizontal ones fit long names."""
    grid: Literal["x", "y"] = "x" if horizontal else "y"

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        bar = axes.barh if horizontal else axes.bar
        width = 0.8 / len(runs)
        for i, name in enumerate(runs):
            position = np.arange(values.shape[1]) + (i - (len(runs) - 1) / 2) * width
            bar(
                position, values[i], width * 0.92, label=truncate(name, 40),
                color=theme.series[i % len(theme.series)], hatch=HATCHES[i % len(HATCHES)],
                edgecolor=theme.background, linewidth=0, yerr=None if error is None else error[i],
                ecolor=theme.text,
            )  # fmt: skip
        if horizontal:
            axes.set_yticks(range(len(ticks)), ticks)
            axes.invert_yaxis()
            axes.set_ylabel(axis_names[0])
            axes.set_xlabel(axis_names[1])
        else:
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlabel(axis_names[0])
            axes.set_ylabel(axis_names[1])
        canvas.legend(loc="outside upper center", ncols=min(3, len(runs)))
        clean_axes(axes, theme, grid)

    return draw
