"""`mufin check`: find problems in a catalogue or a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Quiet
from mufin.errors import UsageError


def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a catalogue or model.")],
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Decode every image.")] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a catalogue for problems, or a model for damage.

    Shows the contents of the folder and every problem found. Exits with 1 if the folder is unusable.

    \b
    Example:
      mufin check shop/
      mufin check runs/shop
    """
    from mufin.data.check import check as check_folder
    from mufin.data.formats.files import require_folder
    from mufin.progress import Progress

    if (folder / "mufin.json").exists():
        return _check_model(folder, json)
    require_folder(folder)
    _refuse_stopped_training(folder)
    report = check_folder(folder, pictures, Progress(quiet or json))
    if json:
        printing.show_json(report.to_json())
    else:
        for line in report.lines():
            typer.echo(line)
    if not report.usable:
        raise typer.Exit(1)


def _refuse_stopped_training(folder: Path) -> None:
    """Raise UsageError if the folder is that of a training which has not finished."""
    if (folder / ".mufin-training").is_dir():
        raise UsageError(
            f"{folder} contains unfinished training but no model yet; continue with: mufin train … --resume"
        )


def _check_model(run: Path, json: bool) -> None:
    """Show each part of a model folder and whether it is intact."""
    from mufin.model.verify import verify

    found = verify(run)
    if json:
        printing.show_json({"model": run, **found.to_json()})
    else:
        rows = [
            [part.name, part.file, printing.size(part.bytes), "damaged" if part.problem else "ok"]
            for part in found.parts
        ]
        if rows:
            printing.show_table(["part", "file", "size", "state"], rows, left=2)
        for problem in [part.problem for part in found.parts if part.problem] + [found.problem]:
            if problem:
                typer.echo(problem)
        typer.echo("All parts are intact" if found.usable else "Damaged")
    if not found.usable:
        raise typer.Exit(1)
