"""`mufin check`: find problems in a catalogue or a model folder."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Quiet
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.progress import Task


def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a catalogue or of a model.")],
    pictures: Annotated[bool, typer.Option("--pictures/--no-pictures", help="Open every picture.")] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what is in a catalogue and what is odd about it; or whether a model is as it was saved.

    Ends with exit code 1 if it cannot be used.

    \b
    Example:
      mufin check shop/
      mufin check runs/shop
    """
    from mufin.data.check import check as check_folder

    if (folder / "mufin.json").exists():
        return _check_model(folder, json)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; expected one with items.jsonl or items.parquet")
    with _Counter("Looking at pictures", quiet or json) as counter:
        report = check_folder(folder, pictures, counter)
    if json:
        printing.show_json(report.to_json())
    else:
        for line in report.lines():
            typer.echo(line)
    if not report.usable:
        raise typer.Exit(1)


def _check_model(run: Path, json: bool) -> None:
    """Every part of a model folder, and whether it is as it was saved."""
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
            printing.show_table(["part", "file", "size", "found"], rows, left=2)
        for problem in [part.problem for part in found.parts if part.problem] + [found.problem]:
            if problem:
                typer.echo(problem)
        typer.echo("Damaged" if not found.usable else "All parts are as they were saved")
    if not found.usable:
        raise typer.Exit(1)


class _Counter:
    """Feeds the `progress(done, total)` of a check into bars, a new one whenever counting starts again."""

    def __init__(self, name: str, quiet: bool) -> None:
        from mufin.progress import Progress

        self.name, self.progress = name, Progress(quiet)
        self.stack, self.done = ExitStack(), 0
        self.task: Task | None = None

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def __call__(self, done: int, total: int) -> None:
        if self.task is None or done < self.done:
            self.stack.close()
            self.task, self.done = self.stack.enter_context(self.progress.task(self.name, total)), 0
        self.task.advance(done - self.done)
        self.done = done
