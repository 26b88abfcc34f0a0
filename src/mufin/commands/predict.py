"""`mufin predict` and `mufin embed`: write the labels or embeddings of many items."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import (
    Best,
    Input,
    OnlySplit,
    Overwrite,
    RayOptions,
    Run,
    RunOptions,
    TableOptions,
    check_new_file,
    grouped,
)
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.model.bulk import Summary, Wanted

STDOUT = Path("-")


@dataclass(frozen=True)
class PredictOptions:
    """Where predictions go, and which labels."""

    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUTPUT",
            help="The .csv, .tsv, .jsonl or .parquet file to write, or - for standard output; a folder with "
            "--ray.",
        ),
    ] = STDOUT
    overwrite: Overwrite = False
    k: Best = 10
    min_probability: Annotated[float, typer.Option(metavar="P", help="Leave out less probable labels.")] = 0.0
    split: OnlySplit = None


@grouped
def predict(
    run: Run,
    input: Input,
    labels: PredictOptions,
    table: TableOptions,
    how: RunOptions,
    ray: RayOptions,
) -> None:
    """Write the best labels of many items.

    Each row becomes one line: `id`, `labels`, `scores`, `probabilities`, and `error` for a bad row. The lists
    are empty if the model can read neither text nor image. Without --text and --image, the columns are those
    of a catalogue: id, title, texts, images. Standard input is CSV, TSV or JSON lines; each line is answered
    immediately. Standard output is CSV if the input is CSV, otherwise JSON lines.

    With --ray, a .parquet file or a folder of them becomes a folder of .parquet files with the same answers.
    If the command is stopped, run it again to compute what is missing.

    \b
    Example:
      mufin predict runs/shop new.csv --id sku --text title --image photo -o predictions.csv -k 5
      tail -f new.jsonl | mufin predict runs/shop - --min-probability 0.5
      mufin predict runs/shop new.parquet -o predictions/ --ray
    """
    started = time.monotonic()
    from mufin.model import bulk
    from mufin.model.blocks import Source

    if ray.wanted:
        wanted = bulk.Wanted(labels.k, labels.min_probability, table.separator)
        places = _Places(run, input, labels.output, labels.split, labels.overwrite)
        return _by_ray(places, wanted, table, how, ray)
    _check_output(labels.output, (".csv", ".tsv", ".jsonl", ".parquet"), labels.overwrite, input, how)
    wanted = bulk.Wanted(labels.k, labels.min_probability, table.separator)
    model = how.load(run)
    source = Source.of(input, model, labels.split, table.columns())
    done = bulk.predict_file(model, source, labels.output, wanted, how.progress())
    return _report(done, labels.output, started, how)


@grouped
def embed(
    run: Run,
    input: Input,
    table: TableOptions,
    how: RunOptions,
    ray: RayOptions,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="OUTPUT",
            help="The .npy, .parquet or .jsonl file to write, or - for standard output; a folder with --ray.",
        ),
    ] = STDOUT,
    split: OnlySplit = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the embeddings of many items.

    Embeddings have length 1 and are in the order of the items: a float32 array (n, D) in .npy; otherwise,
    rows with `id` and `vector`. Bad rows and items that the model cannot read get zero vectors. The input is
    read as in `mufin predict`, with or without --ray.

    \b
    Example:
      mufin embed runs/shop shop/ -o vectors.npy
      mufin embed runs/shop new.parquet -o vectors/ --ray
    """
    started = time.monotonic()
    from mufin.model import bulk
    from mufin.model.blocks import Source

    if ray.wanted:
        return _by_ray(_Places(run, input, output, split, overwrite), None, table, how, ray)
    _check_output(output, (".npy", ".parquet", ".jsonl"), overwrite, input, how)
    model = how.load(run)
    source = Source.of(input, model, split, table.columns())
    return _report(bulk.embed_file(model, source, output, how.progress()), output, started, how)


@dataclass(frozen=True)
class _Places:
    """What to read, and where results go."""

    run: Path
    input: Path
    output: Path
    split: str | None
    overwrite: bool


def _by_ray(
    places: _Places, wanted: Wanted | None, table: TableOptions, how: RunOptions, ray: RayOptions
) -> None:
    """Predict, or embed if no labels are wanted, by workers of a Ray cluster."""
    started = time.monotonic()
    from mufin.distributed.predict import Job, predict_parts

    if places.output == STDOUT:
        raise UsageError("--ray writes a folder of Parquet files; name one with -o FOLDER")
    if places.split is not None:
        raise UsageError("--split needs a catalogue folder, but --ray reads .parquet files; omit one of them")
    job = Job(
        places.run, places.input, places.output, wanted,
        columns=table.columns(), device=how.device, exact=how.exact,
    )  # fmt: skip
    with _resumable():
        done = predict_parts(job, how.progress(), ray.ray_address, places.overwrite)
    _report(done, places.output, started, how)


@contextmanager
def _resumable() -> Iterator[None]:
    """After Ctrl-C, say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped. Run the same command again to compute what is missing.", err=True)
        raise


def _check_output(
    output: Path, suffixes: tuple[str, ...], overwrite: bool, input: Path, how: RunOptions
) -> None:
    """Refuse an output that cannot be written, or must not be."""
    if output == STDOUT:
        if how.json:
            raise UsageError("--json would be mixed with the results on standard output; add -o FILE")
        return
    if output.exists() and input.exists() and output.samefile(input):
        raise UsageError(f"{output} is the input file; choose another name")
    check_new_file(output, overwrite, suffixes)


def _report(done: Summary, output: Path, started: float, how: RunOptions) -> None:
    """Print the number of items written, and warn of bad rows and items that the model cannot read."""
    seconds = time.monotonic() - started
    if how.json:
        printing.show_json({"output": output, **vars(done), "seconds": round(seconds, 3)})
        return
    if done.bad_rows:
        for line in printing.bad_rows(done.bad_rows):
            printing.warn(line)
    empty = done.empty - len(done.bad_rows)
    if empty:
        have = "has" if empty == 1 else "have"
        printing.warn(f"{printing.count(empty, 'item')} {have} no text or image that this model can read")
    if output != STDOUT:
        items = printing.count(done.items, "item")
        typer.echo(f"{items} in {printing.duration(seconds)}, written to {output}")
