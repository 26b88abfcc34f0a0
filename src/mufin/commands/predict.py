"""`mufin predict` and `mufin embed`: from a file of items to a file of labels or vectors."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import (
    Best,
    Device,
    Exact,
    Input,
    Json,
    OnlySplit,
    Quiet,
    Run,
    load_model,
)  # fmt: skip

if TYPE_CHECKING:
    from mufin.model.bulk import Done


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
    from mufin.model import bulk
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
    from mufin.model import bulk
    from mufin.progress import Progress

    bulk.check_output(output, (".npy", ".parquet", ".jsonl"), input)
    model = load_model(run, device, exact)
    done = bulk.embed_file(model, bulk.Source.of(input, model, split), output, Progress(quiet or json))
    _report(done, output, started, json)


def _report(done: Done, output: Path, started: float, json: bool) -> None:
    """Say what was written."""
    seconds = time.monotonic() - started
    if json:
        printing.show_json({"output": output, **vars(done), "seconds": round(seconds, 3)})
        return
    if done.empty:
        printing.warn(f"{done.empty:,} items have nothing that this model can look at")
    typer.echo(f"{done.items:,} items in {printing.duration(seconds)}, written to {output}")
