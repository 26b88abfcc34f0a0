"""`mufin export`: write a model for programs without mufin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Run
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.retrieve.collection import Collection


def export(
    run: Run,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="New folder to write.")
    ] = None,
    to: Annotated[
        Literal["onnx", "npy", "parquet", "milvus"],
        typer.Option(
            help="onnx: encoders and index entries, as ONNX and NumPy files; npy, parquet, milvus: index "
            "entries only."
        ),
    ] = "onnx",
    uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Address of a Milvus server, or a file name ending in .db."),
    ] = None,
    collection: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the new Milvus collection.")
    ] = "mufin",
    json: Json = False,
) -> None:
    """Write a model for programs without mufin or torch.

    The index entries are the vectors that the search compares: a label may own several. With `--to onnx` the
    encoders, the projections and self-attention become ONNX graphs that compute the vectors of `mufin embed
    --exact`; docs/how-to/onnx.md has a script that uses them.

    `--to milvus --uri URI` fills a collection that you can search yourself; group by the field `label`. With
    -o, it also writes a model folder that searches there. Without --uri, it refills a lost collection of a
    model that searches in Milvus. See docs/distributed.md.

    \b
    Example:
      mufin export runs/shop -o shop-onnx
      mufin export runs/shop --to parquet -o shop-vectors
      mufin export runs/shop --to milvus --uri http://127.0.0.1:19530 --collection shop
    """
    if to == "milvus":
        filled = _to_milvus(run, output, uri, collection)
        facts = {"uri": filled.uri, "collection": filled.name, "output": output}
        if json:
            printing.show_json(facts)
        else:
            typer.echo(f"Collection {filled.name} filled in Milvus at {filled.uri}")
        return
    if output is None:
        raise UsageError("-o is missing: name a new folder to write")
    from mufin.model.export import export as write
    from mufin.model.store import load

    model = load(run, "cpu", exact=True)
    files = write(model, output, to)
    if json:
        printing.show_json({"output": output, "files": files})
        return
    shown = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in files.items())
    typer.echo(f"{printing.count(len(model.labels), 'label')} written to {output}: {shown}")


def _to_milvus(run: Path, output: Path | None, uri: str | None, name: str) -> Collection:
    """Fill a collection; return it."""
    from mufin.model.export import fill_collection, move_to_milvus, refill
    from mufin.model.store import load

    if uri is None:
        return refill(run)
    model = load(run, "cpu", exact=True)
    return fill_collection(model, uri, name) if output is None else move_to_milvus(model, output, uri, name)
