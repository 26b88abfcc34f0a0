"""`mufin export`: write a model for programs without mufin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Run


def export(
    run: Run,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="New folder to write.")],
    to: Annotated[
        Literal["onnx", "npy", "parquet"],
        typer.Option(help="Encoders and index entries as ONNX and NumPy files, or index entries only."),
    ] = "onnx",
    json: Json = False,
) -> None:
    """Write a model for programs without mufin or torch.

    The index entries are the vectors that the search compares: a label may own several. With `--to onnx` the
    encoders, the projections and self-attention become ONNX graphs, whose vectors are those of `mufin embed`
    with --exact; docs/how-to/onnx.md has a script that uses them.

    \b
    Example:
      mufin export runs/shop -o shop-onnx
      mufin export runs/shop --to parquet -o shop-vectors
    """
    from mufin.model.export import export as write
    from mufin.model.store import load

    model = load(run, "cpu", exact=True)
    files = write(model, output, to)
    if json:
        printing.show_json({"output": output, "files": files})
        return
    shown = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in files.items())
    typer.echo(f"{printing.count(len(model.labels), 'label')} written to {output}: {shown}")
