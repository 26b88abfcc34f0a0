"""`mufin train` and `mufin demo`: train a model."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.config import chosen_settings
from mufin.commands.options import (
    Device,
    Folder,
    Json,
    NewRun,
    Quiet,
    RayOptions,
    Settings,
    Variant,
    grouped,
)
from mufin.errors import MufinError, UsageError
from mufin.progress import roughly
from mufin.runtime.usage import gigabytes

if TYPE_CHECKING:
    from mufin.config import Config
    from mufin.data.catalogue import Catalogue
    from mufin.progress import Progress
    from mufin.train.checkpoint import IfExists
    from mufin.train.plan import Plan


@grouped
def train(
    folder: Folder,
    output: NewRun,
    ray: RayOptions,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="best (the default), fast or paper.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file with settings, instead of a preset.")
    ] = None,
    variant: Variant = None,
    modalities: Annotated[
        str | None, typer.Option(metavar="text|image|both", help="Modalities to read.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed; the same seed gives the same model.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Split to train on.")] = "train",
    sets: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Train on these sets instead of a split; see the setting sets.points."
        ),
    ] = None,
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue stopped training, or start if there is none.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the model or unfinished training in RUN.")
    ] = False,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Only show how much time, memory and disk space training will take."),
    ] = False,
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a catalogue.

    First spends a few seconds estimating time, memory and disk space, and stops if memory or disk space is
    too small. With --resume, stopped or killed training continues and ends with the same model. With --ray,
    the workers of a cluster first encode all texts and images into the feature cache.

    \b
    Example:
      mufin train shop/ -o runs/shop
      mufin train shop/ -o runs/shop --plan
      mufin train shop/ -o runs/shop --resume
      mufin train shop/ -o runs/words --modalities text --set finetune.epochs=10
      mufin train shop/ -o runs/no-as --preset paper --variant no-as
      torchrun --nproc-per-node 4 -m mufin train shop/ -o runs/shop --resume
    """
    started = time.monotonic()
    if resume and overwrite:
        raise UsageError("choose --resume or --overwrite, not both")
    existing: IfExists = "resume" if resume else "overwrite" if overwrite else "refuse"
    given = {"modalities": modalities, "seed": seed, "run.device": None if device == "auto" else device}
    chosen = [f"{name}={value}" for name, value in given.items() if value is not None]
    used = chosen_settings(preset, config, variant, [*chosen, *(settings or [])])
    from mufin.data.catalogue import Catalogue
    from mufin.encode.cache_folder import cache_folder
    from mufin.progress import Progress
    from mufin.runtime.memory import keep_freed_memory
    from mufin.runtime.usage import free_disk, free_memory
    from mufin.train.epochs import VALIDATION

    catalogue = Catalogue.read(folder)
    if sets is not None:
        catalogue = catalogue.from_sets(sets, used.sets.points, used.seed)
    progress, metrics = Progress(quiet or json), dict[str, float]()
    with keep_freed_memory():
        from mufin.train.calibrate import plan as plan_training
        from mufin.train.checkpoint import is_finished, refuse
        from mufin.train.fit import fit, refuse_other_settings
        from mufin.train.ranks import is_first, several_processes

        if not plan:
            refuse(output, existing)
        if resume:
            refuse_other_settings(output, used)
        planned, finished = None, resume and is_finished(output)
        with _resumable():
            if ray.wanted and not plan and not finished:
                _encode_by_ray(folder, catalogue, used, split, progress, ray)
            if plan or not (several_processes() or finished):
                planned = plan_training(catalogue, used, split, progress, quick=not plan)
                if plan:
                    return printing.show_json(planned.to_json()) if json else _show_plan(planned)
                planned.check(free_memory(), free_disk(output), free_disk(cache_folder()))
                progress.say(str(planned))
            model = fit(
                catalogue, used, output, split, quiet or json,
                if_exists=existing, callbacks=[lambda event: metrics.update(event.values)], plan=planned,
            )  # fmt: skip
    if not is_first():  # under torchrun, only the first process prints
        return None
    seconds = time.monotonic() - started
    if json:
        facts = {
            "model": output,
            "labels": len(model.labels),
            "seconds": round(seconds, 1),
            "metrics": metrics,
        }
        return printing.show_json(facts)
    labels, took = printing.count(len(model.labels), "label"), printing.duration(seconds)
    found = f"; {VALIDATION} {metrics[VALIDATION]:.1f} %" if VALIDATION in metrics else ""
    done = "Training had already finished" if finished else f"Trained on {labels} in {took}{found}"
    typer.echo(f"{done}; the model is in {output}")
    printing.show_next(_next_commands(output, folder, catalogue))


def _encode_by_ray(
    folder: Path, catalogue: Catalogue, config: Config, split: str, progress: Progress, ray: RayOptions
) -> None:
    """Fill the feature cache by workers of a Ray cluster."""
    from mufin.distributed.encode import fill_cache
    from mufin.train.ranks import several_processes

    if several_processes():
        raise UsageError(
            "--ray cannot be used under torchrun; fill the cache first, without torchrun: "
            "mufin train … --ray, and stop it when encoding is done"
        )
    fill_cache(folder, catalogue, config, split, progress, ray.ray_address)


@contextmanager
def _resumable() -> Iterator[None]:
    """Print how to resume if anything stops the training; SIGTERM ends it like Ctrl-C, with exit code 143."""

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except MufinError:  # its message says what to do
        raise
    except BaseException:
        typer.echo("Training stopped. To continue, run the same command with --resume.", err=True)
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def demo(
    output: NewRun = Path("runs/demo"),
    preset: Annotated[str, typer.Option(metavar="NAME", help="Preset to train with.")] = "fast",
    settings: Settings = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on the embedded catalogue and compare with two baselines.

    Takes a few minutes on two cores and saves a model to try. `--preset best` is more accurate but slower.

    \b
    Example:
      mufin demo -o runs/demo
    """
    used = chosen_settings(preset, None, None, settings or [])
    from mufin.data.catalogue import Catalogue
    from mufin.progress import Progress
    from mufin.runtime.memory import keep_freed_memory

    catalogue = Catalogue.demo()
    progress = Progress(quiet or json)
    points = printing.count(len(catalogue.split("train")), "training datapoint")
    progress.say(f"{catalogue}: {points}")
    with keep_freed_memory():
        from mufin.evaluate.demo import run_demo

        found = run_demo(catalogue, used, output, progress)
    if json:
        printing.show_json({"model": output, "seconds": found.train_seconds, "scores": found.scores})
        return
    printing.show_demo(found)
    typer.echo(f"\nTrained in {printing.duration(found.train_seconds)}; the model is in {output}")
    query = found.examples[0].text if found.examples else "house"
    printing.show_next([f'mufin recommend {output} "{query}"', f"mufin info {output}"])


def _show_plan(plan: Plan) -> None:
    """Print the cost of each stage, and what memory and disk space are used for."""
    gpu = bool(plan.gpu)
    header = ["stage", "time", "memory", *["GPU memory"] * gpu, "disk"]
    rows = [
        [s.name, roughly(s.seconds), gigabytes(s.memory), *[gigabytes(s.gpu)] * gpu, gigabytes(s.disk)]
        for s in plan.stages
    ]
    printing.show_table(header, rows)
    space = ", ".join(f"{name} {gigabytes(size)}" for name, size in plan.disk_parts.items())
    memory = ", ".join(f"{name} {gigabytes(size)}" for name, size in plan.memory_parts.items())
    typer.echo(f"\n{plan}")
    typer.echo(f"Already in the feature cache: {plan.cached:.0%}")
    typer.echo(f"Memory: {memory}")
    typer.echo(f"Disk: {space}; checkpoints are removed at the end")


def _next_commands(run: Path, folder: Path, catalogue: Catalogue) -> list[str]:
    """Return the commands to try after training."""
    questions = [part.name for part in catalogue.parts.values() if part.kind == "questions"]
    tests = [f"mufin evaluate {run} {folder}"] if "test" in catalogue.splits else []
    tests += [f"mufin evaluate {run} {folder} --fitb {name}" for name in questions[-1:]]
    return [*tests, f'mufin recommend {run} "a few words"', f"mufin info {run}"]
