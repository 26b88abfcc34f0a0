"""Asking a model: evaluate, predict, embed, recommend."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import (
    Best,
    Category,
    Device,
    Exact,
    Folder,
    Input,
    Json,
    OnlySplit,
    Propensity,
    Quiet,
    Report,
    Run,
    TestSplit,
    constants,
    load_model,
)  # fmt: skip
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.bulk import Done
    from mufin.data.catalogue import Catalogue
    from mufin.model import Mufin
    from mufin.progress import Progress


def evaluate(
    run: Run,
    folder: Folder,
    split: TestSplit = "test",
    fitb: Annotated[
        str | None, typer.Option(metavar="QUESTIONS", help="Answer fill-in-the-blank questions instead.")
    ] = None,
    propensity: Propensity = "0.55,1.5",
    report: Report = None,
    category: Category = "category",
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on a split of a catalogue.

    Metrics with an @ are percentages, AUC and MRR lie between 0 and 1. QUESTIONS is a file or a name inside
    the catalogue.

    \b
    Example:
      mufin evaluate runs/shop shop/ --split test --json
      mufin evaluate runs/shop shop/ --report report.html
      mufin evaluate runs/outfits outfits/ --fitb fitb_test
    """
    from mufin.data.catalogue import Catalogue
    from mufin.progress import Progress

    catalogue = Catalogue.read(folder)
    progress = Progress(quiet or json)
    if fitb is not None and report is not None:
        raise UsageError("a report is about a split, --fitb about questions; ask for one of them")
    if fitb is not None:
        values = _answer(load_model(run, device, exact), catalogue, _questions(folder, fitb), progress)
    else:
        catalogue.split(split)  # an unknown name should not cost the time of loading a model
        a_b = constants(propensity)
        if report is not None:
            from mufin.evaluate.report import check_report, write_report

            check_report(report)
            model = load_model(run, device, exact)
            values = write_report(model, catalogue, report, split, a_b, category, progress)
        else:
            from mufin.evaluate.score import evaluate as evaluate_model

            values = evaluate_model(load_model(run, device, exact), catalogue, split, a_b, progress)
    if json:
        printing.show_json({name: round(value, 6) for name, value in values.items()})
    else:
        printing.show_metrics({str(run): values})
        if report is not None:
            typer.echo(f"\nThe report is in {report}")


def predict(
    run: Run,
    input: Input,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUTPUT", help="A .jsonl or .parquet file to write.")
    ],
    k: Best = 10,
    split: OnlySplit = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the best labels of many items to a file.

    The file has a row of `id`, `labels`, `scores` for each item; one with nothing to look at has no labels.

    \b
    Example:
      mufin predict runs/shop new-items.jsonl -o predictions.jsonl -k 5
    """
    started = time.monotonic()
    from mufin import bulk
    from mufin.progress import Progress

    bulk.check_output(output, (".jsonl", ".parquet"), input)
    model = load_model(run, device, exact)
    done = bulk.predict_file(model, bulk.Source.of(input, model, split), output, k, Progress(quiet or json))
    _report(done, output, started, json)


def embed(
    run: Run,
    input: Input,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="OUTPUT", help="A .npy, .parquet or .jsonl file to write."),
    ],
    split: OnlySplit = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the vectors of many items to a file.

    They have length 1, and stand in the order of the items: an array (n, D) float32 as .npy, or rows of `id`,
    `vector`.

    \b
    Example:
      mufin embed runs/shop shop/ -o vectors.npy
    """
    started = time.monotonic()
    from mufin import bulk
    from mufin.progress import Progress

    bulk.check_output(output, (".npy", ".parquet", ".jsonl"), input)
    model = load_model(run, device, exact)
    done = bulk.embed_file(model, bulk.Source.of(input, model, split), output, Progress(quiet or json))
    _report(done, output, started, json)


def recommend(
    run: Run,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts of the item.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="A picture of the item; repeatable.")
    ] = None,
    k: Best = 10,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only labels so named; repeatable.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Never this label; repeatable.")
    ] = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
) -> None:
    """Show the best labels of one item.

    score = β · classifier + (1 − β) · similarity with a fixed β, else a mixture learnt in training, in which
    the votes of similar training points (memory) take part.

    \b
    Example:
      mufin recommend runs/shop "oak desk" --image desk.jpg -k 5
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one query gains nothing by more, which take time to start
    from mufin.data.item import Item

    try:
        "".join(text or ()).encode()
    except UnicodeEncodeError:
        raise UsageError("the text is not UTF-8; expected readable text") from None
    item = Item(texts=text or (), images=tuple(image or ()))
    if item.is_empty:
        raise UsageError("nothing to look at: give a text, or a picture with --image FILE")
    for picture in image or ():
        from mufin.data.images import open_picture

        open_picture(picture, 64)  # among many, a broken picture is left out; the only item's is an error
    model = load_model(run, device, exact)
    if item.images and model.config.modalities == "text":
        printing.warn("this model reads texts only; the picture is not looked at")
    hits = model.recommend(item, k, allow or None, deny or ())
    if json:
        printing.show_json({"hits": [hit.as_dict() for hit in hits]})
        return
    numbers = [(h.probability, h.score, *h.parts.values()) for h in hits]
    rows = [[h.label, h.text, *(f"{x:.3f}" for x in row)] for h, row in zip(hits, numbers, strict=True)]
    parts = hits[0].parts if hits else ()
    printing.show_table(["label", "text", "probability", "score", *parts], rows, left=2)


def _questions(folder: Path, name: str) -> str | Path:
    """A path, or a name inside the catalogue with or without its suffix."""
    if Path(name).is_file():
        return Path(name)
    return Path(name).stem if (folder / name).is_file() else name


def _answer(model: Mufin, catalogue: Catalogue, source: str | Path, progress: Progress) -> dict[str, float]:
    """The share of fill-in-the-blank questions that the model answers rightly."""
    from mufin.evaluate.metrics import fitb_accuracy
    from mufin.evaluate.score import answer

    questions = catalogue.questions(source)
    if not len(questions):
        raise UsageError(f"{source}: no questions in it")
    chosen = answer(model, catalogue, questions, progress)
    return {"accuracy": 100 * fitb_accuracy(chosen, questions.answer), "questions": len(questions)}


def _report(done: Done, output: Path, started: float, json: bool) -> None:
    """Say what was written."""
    seconds = time.monotonic() - started
    if json:
        printing.show_json({"output": output, **vars(done), "seconds": round(seconds, 3)})
        return
    if done.empty:
        printing.warn(f"{done.empty:,} items have nothing that this model can look at")
    typer.echo(f"{done.items:,} items in {printing.duration(seconds)}, written to {output}")
