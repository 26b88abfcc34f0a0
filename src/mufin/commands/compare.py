"""`mufin compare`: evaluate models side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import (
    Category,
    Overwrite,
    Propensity,
    Report,
    RunOptions,
    TestSplit,
    check_new_report,
    grouped,
    parse_propensity,
)  # fmt: skip
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.evaluate.compare import Comparison
    from mufin.model.mufin import Mufin

METRICS_SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "R@10", "R@100", "PSP@5", "AUC", "MRR")


@grouped
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Folders of trained models.")],
    catalogue: Annotated[Path, typer.Option(metavar="FOLDER", help="Catalogue to evaluate them on.")],
    how: RunOptions,
    split: TestSplit = "test",
    propensity: Propensity = "0.55,1.5",
    category: Category = "category",
    report: Report = None,
    overwrite: Overwrite = False,
) -> None:
    """Evaluate several models and test their differences.

    Each difference has a 95 % confidence interval and a two-sided p-value, both from one paired bootstrap
    over datapoints: the interval excludes zero exactly when p < 0.05. `*` marks p < 0.05, `**` p < 0.01,
    `***` p < 0.001; p-values are not corrected for multiple comparisons.

    \b
    Example:
      mufin compare runs/shop runs/words --catalogue shop/ --report compare.html
    """
    if len(runs) < 2:
        raise UsageError("a single run cannot be compared; name two or more, or use `mufin evaluate`")
    from mufin.data.catalogue import Catalogue

    read = Catalogue.read(catalogue)
    read.split(split)  # fail on an unknown name before loading a model
    if report is not None:
        from mufin.evaluate.report import check_report

        check_report(report)
        check_new_report(report, overwrite)
    from mufin.evaluate.compare import compare as compare_models

    def load_models() -> Iterator[tuple[str, Mufin]]:
        short = len({run.name for run in runs}) == len(runs)
        for run in runs:
            yield run.name if short else str(run), how.load(run)

    progress = how.progress()
    found = compare_models(load_models(), read, split, parse_propensity(propensity), category, progress)
    if report is not None:
        from mufin.evaluate.report.comparison import write_comparison

        write_comparison(found, report)
    if how.json:
        printing.show_json(found.to_json())
        return
    _show_comparison(found)
    if report is not None:
        typer.echo(f"\nThe report is in {report}")


def _show_comparison(found: Comparison) -> None:
    """Print one row per metric: the value of the first run, then value, difference and p of each other."""
    first, *others = found.runs.items()
    rows = []
    for metric in METRICS_SHOWN:
        digits = 2 if "@" in metric else 4
        row = [metric, f"{first[1].metrics[metric]:.{digits}f}"]
        for _, run in others:
            by = run.against[metric]
            row += [
                f"{run.metrics[metric]:.{digits}f}",
                f"{by.value:+.{digits}f} [{by.low:+.{digits}f}, {by.high:+.{digits}f}]",
                f"{'< 0.001' if by.p < 0.001 else f'{by.p:.3f}'} {_stars(by.p):3}",
            ]
        rows.append(row)
    header = ["", first[0]]
    for name, _ in others:
        header += [name, "difference", "p    "]
    printing.show_table(header, rows)


def _stars(p: float) -> str:
    """Return one star per significance level reached.

    >>> [_stars(p) for p in (0.2, 0.04, 0.009, 0.0005)]
    ['', '*', '**', '***']
    """
    return "*" * sum(p < bound for bound in (0.05, 0.01, 0.001))
