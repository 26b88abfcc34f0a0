"""`mufin evaluate`: evaluate a model on a split or on fill-in-the-blank questions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import (
    Category,
    Folder,
    Overwrite,
    Propensity,
    Report,
    Run,
    RunOptions,
    TestSplit,
    check_new_report,
    grouped,
    parse_propensity,
)  # fmt: skip
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue
    from mufin.model.mufin import Mufin
    from mufin.progress import Progress


@grouped
def evaluate(
    run: Run,
    folder: Folder,
    how: RunOptions,
    split: TestSplit = "test",
    fitb: Annotated[
        str | None, typer.Option(metavar="QUESTIONS", help="Evaluate on fill-in-the-blank questions instead.")
    ] = None,
    propensity: Propensity = "0.55,1.5",
    report: Report = None,
    category: Category = "category",
    overwrite: Overwrite = False,
) -> None:
    """Evaluate a model on a split of a catalogue.

    Metrics with an @ are percentages; AUC and MRR are between 0 and 1. QUESTIONS is a file, or the name of a
    table of the catalogue.

    \b
    Example:
      mufin evaluate runs/shop shop/ --split test --json
      mufin evaluate runs/shop shop/ --report report.html
      mufin evaluate runs/outfits outfits/ --fitb fitb_test
    """
    from mufin.data.catalogue import Catalogue

    catalogue = Catalogue.read(folder)
    progress = how.progress()
    if fitb is not None and report is not None:
        raise UsageError("--report and --fitb cannot be combined; use one of them")
    if fitb is not None:
        values = _answer(how.load(run), catalogue, _question_source(folder, fitb), progress)
    else:
        catalogue.split(split)  # fail on an unknown name before loading a model
        a_b = parse_propensity(propensity)
        if report is not None:
            from mufin.evaluate.report import check_report, write_report

            check_report(report)
            check_new_report(report, overwrite)
            model = how.load(run)
            values = write_report(model, catalogue, report, split, a_b, category, progress, str(folder))
        else:
            from mufin.evaluate.score import evaluate as evaluate_model

            values = evaluate_model(how.load(run), catalogue, split, a_b, progress)
    if how.json:
        printing.show_json({name: round(value, 6) for name, value in values.items()})
    else:
        printing.show_metrics({str(run): values})
        if report is not None:
            typer.echo(f"\nThe report is in {report}")


def _question_source(folder: Path, name: str) -> str | Path:
    """Return the path of an existing file, or the name of a table in the catalogue without its suffix."""
    if Path(name).is_file():
        return Path(name)
    return Path(name).stem if (folder / name).is_file() else name


def _answer(model: Mufin, catalogue: Catalogue, source: str | Path, progress: Progress) -> dict[str, float]:
    """Answer fill-in-the-blank questions; return the percentage of right answers and the count."""
    from mufin.evaluate.metrics import fitb_accuracy
    from mufin.evaluate.score import answer

    questions = catalogue.questions(source)
    if not len(questions):
        raise UsageError(f"{source} has no questions; expected at least one")
    chosen = answer(model, catalogue, questions, progress)
    return {"accuracy": 100 * fitb_accuracy(chosen, questions.answer), "questions": len(questions)}
