"""`mufin predict` and `mufin embed`: write the labels or embeddings of many items to a file."""

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
    from mufin.model.bulk import Summary


def predict(
    run: Run,
    input: Input,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="OUTPUT", help="The .jsonl or .parquet file to write.")
    ],
    k: Best = 10,
    split: OnlySplit = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the best labels of many items to a file.

    Each row has `id`, `labels` and `scores` of an item; both lists are empty if the model can read neither
    text nor image of the item.

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
        typer.Option("-o", "--output", metavar="OUTPUT", help="The .npy, .parquet or .jsonl file to write."),
    ],
    split: OnlySplit = None,
    device: Device = "auto",
    exact: Exact = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the embeddings of many items to a file.

    Embeddings have length 1 and are in the order of the items: a float32 array (n, D) in .npy, else rows with
    `id` and `vector`.

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


def _report(done: Summary, output: Path, started: float, json: bool) -> None:
    """Print the number of items written, and warn of items that the model cannot read."""
    seconds = time.monotonic() - started
    if json:
        printing.show_json({"output": output, **vars(done), "seconds": round(seconds, 3)})
        return
    if done.empty:
        have = "has" if done.empty == 1 else "have"
        printing.warn(
            f"{printing.count(done.empty, 'item')} {have} no text or image that this model can read"
        )
    typer.echo(f"{printing.count(done.items, 'item')} in {printing.duration(seconds)}, written to {output}")
