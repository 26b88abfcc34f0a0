"""From a catalogue to a model: check, config, train, demo."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Device, Folder, Json, NewRun, Quiet, Settings, Variant
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.config import Config
    from mufin.data.catalogue import Catalogue
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


def config(
    preset: Annotated[str, typer.Option(metavar="NAME", help="Which settings to start from.")] = "best",
    variant: Variant = None,
    settings: Settings = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")
    ] = None,
    list_names: Annotated[
        bool, typer.Option("--list", help="Name presets and variants, and what they set.")
    ] = False,
) -> None:
    """Print settings as TOML, for `mufin train --config`.

    \b
    Example:
      mufin config --preset paper --set pretrain.epochs=50 -o shop.toml
      mufin config --preset paper --variant no-as
    """
    if list_names:
        return _list_settings()
    text = _settings(preset, None, variant, settings or []).to_toml()
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, "utf-8")
        typer.echo(f"Settings are in {output}; use them with: mufin train FOLDER -o RUN --config {output}")


def _list_settings() -> None:
    """Presets with what they change of the paper's values; variants with what they change of any."""
    from mufin.config import Config
    from mufin.describe import differences
    from mufin.presets import PRESETS, VARIANTS

    typer.echo("Presets")
    for name in PRESETS:
        changed = differences(Config.preset(name), Config())
        typer.echo(f"  {name}" + ("" if changed else "  (the paper's values)"))
        for line in changed:
            typer.echo(f"    {line}")
    typer.echo("Variants")
    for name, changes in VARIANTS.items():
        typer.echo(f"  {name}")
        for line in changes:
            typer.echo(f"    {line}")


def train(
    folder: Folder,
    output: NewRun,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Settings by name; `best` if not given.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings from a TOML file instead.")
    ] = None,
    variant: Variant = None,
    modalities: Annotated[
        str | None, typer.Option(metavar="text|image|both", help="What to look at.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The same seed gives the same model.")] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="The split to train on.")] = "train",
    sets: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Train on these sets, items left out as sets.points says."),
    ] = None,
    settings: Settings = None,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a catalogue.

    \b
    Example:
      mufin train shop/ -o runs/shop
      mufin train shop/ -o runs/words --modalities text --set finetune.epochs=10
      mufin train shop/ -o runs/no-as --preset paper --variant no-as
    """
    started = time.monotonic()
    given = {"modalities": modalities, "seed": seed, "run.device": None if device == "auto" else device}
    chosen = [f"{name}={value}" for name, value in given.items() if value is not None]
    used = _settings(preset, config, variant, [*chosen, *(settings or [])])
    from mufin.data.catalogue import Catalogue

    catalogue = Catalogue.read(folder)
    if sets is not None:
        catalogue = catalogue.from_sets(sets, used.sets.points, used.seed)
    with _claimed(output):
        from mufin.train.fit import fit

        model = fit(catalogue, used, output, split, quiet=quiet or json)
    seconds = time.monotonic() - started
    if json:
        facts = {
            "model": output,
            "labels": len(model.labels),
            "seconds": round(seconds, 1),
        }
        printing.show_json(facts)
        return
    typer.echo(
        f"Trained on {len(model.labels):,} labels in {printing.duration(seconds)}; the model is in {output}"
    )
    printing.show_next(_next_commands(output, folder, catalogue))


def demo(
    output: NewRun = Path("runs/demo"),
    preset: Annotated[str, typer.Option(metavar="NAME", help="Settings by name.")] = "fast",
    settings: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on the embedded catalogue, beside two baselines.

    Takes a few minutes on two cores, and leaves a model to play with; `--preset best` is more accurate,
    and takes longer.

    \b
    Example:
      mufin demo -o runs/demo
    """
    used = _settings(preset, None, None, settings or [])
    from mufin.data.catalogue import Catalogue
    from mufin.progress import Progress

    catalogue = Catalogue.demo()
    progress = Progress(quiet or json)
    progress.say(f"{catalogue}: {len(catalogue.split('train')):,} points to train on")
    with _claimed(output):
        from mufin.evaluate.demo import run_demo

        found = run_demo(catalogue, used, output, progress)
    if json:
        printing.show_json({"model": output, "seconds": found.train_seconds, "scores": found.scores})
        return
    printing.show_demo(found)
    typer.echo(f"\nTrained in {printing.duration(found.train_seconds)}; the model is in {output}")
    query = found.examples[0].text if found.examples else "house"
    printing.show_next([f'mufin recommend {output} "{query}"', f"mufin info {output}"])


def _check_model(run: Path, json: bool) -> None:
    """Every part of a model folder, and whether it is as it was saved."""
    from mufin.verify import verify

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


def _settings(preset: str | None, file: Path | None, variant: str | None, changes: list[str]) -> Config:
    """Settings from a preset or a file, of a variant if one is named, with changes."""
    from mufin.config import Config

    if preset is not None and file is not None:
        raise UsageError("give --preset or --config, not both")
    base = Config.preset(preset or "best") if file is None else Config.read(file)
    return base.override(changes) if variant is None else base.variant(variant, changes)


@contextmanager
def _claimed(run: Path) -> Iterator[None]:
    """Make the folder for a model before hours are spent on training; refuse one that holds other things."""
    if run.is_dir() and not (run / "mufin.json").exists():
        # What a run that was stopped may have left is no reason to refuse.
        others = [path.name for path in run.iterdir() if not path.name.startswith((".mufin", "logs"))]
        if others:
            raise UsageError(
                f"{run} is not empty and not a model folder (it has {others[0]}); choose another -o"
            )
    existed = run.exists()
    run.mkdir(parents=True, exist_ok=True)
    if not os.access(run, os.W_OK):
        raise UsageError(f"{run} cannot be written to; choose another -o")
    try:
        yield
    finally:
        if not existed:
            with suppress(OSError):  # only an empty folder goes
                run.rmdir()


def _next_commands(run: Path, folder: Path, catalogue: Catalogue) -> list[str]:
    questions = [part.name for part in catalogue.parts.values() if part.kind == "questions"]
    tests = [f"mufin evaluate {run} {folder}"] if "test" in catalogue.splits else []
    tests += [f"mufin evaluate {run} {folder} --fitb {name}" for name in questions[-1:]]
    return [*tests, f'mufin recommend {run} "a few words"', f"mufin info {run}"]
