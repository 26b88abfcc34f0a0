"""The arguments that commands share, and what several of them do with these."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.model.mufin import Mufin

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained model.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a catalogue.")]
NewRun = Annotated[Path, typer.Option("-o", "--output", metavar="RUN", help="Folder for the model.")]
Input = Annotated[
    Path, typer.Argument(metavar="INPUT", help="A catalogue folder, or a .jsonl or .parquet file of items.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; repeatable.")
]
Variant = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A variant of the paper, such as no-as; `mufin config --list`."),
]
OnlySplit = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only the items of this split of the folder.")
]
TestSplit = Annotated[str, typer.Option(metavar="NAME", help="The split to predict.")]
Propensity = Annotated[str, typer.Option(metavar="A,B", help="Propensity constants; Amazon data: 0.6,2.6.")]
Category = Annotated[
    str, typer.Option(metavar="COLUMN", help="The column of items that a report groups datapoints by.")
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write a page with figures; their files go beside it."),
]
Best = Annotated[int, typer.Option("-k", metavar="N", help="How many labels.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Full precision: encoders as they were trained, slower.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def _known_device(name: str) -> str:
    """A device that is there; torch is asked only for what is not the default."""
    if name != "auto":
        import torch

        try:
            torch.zeros(1, device=name)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"device {name!r} cannot be used: {reason}") from None
    return name


Device = Annotated[
    str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …", callback=_known_device)
]


def load_model(run: Path, device: str = "auto", exact: bool = False) -> Mufin:
    """The model in a folder."""
    from mufin.model.store import load

    return load(run, device, exact)


def constants(text: str) -> tuple[float, float]:
    """The two numbers of --propensity."""
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--propensity {text!r}: expected two numbers as in 0.55,1.5") from None
    return a, b
