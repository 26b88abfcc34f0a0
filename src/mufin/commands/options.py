"""Arguments and options that several commands share, and helpers that interpret them."""

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
    Path, typer.Argument(metavar="INPUT", help="Catalogue folder, or .jsonl or .parquet file of items.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable."),
]
Variant = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Variant of the paper, such as no-as; see `mufin config --list`."),
]
OnlySplit = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only the items of this split of the catalogue.")
]
TestSplit = Annotated[str, typer.Option(metavar="NAME", help="Split to evaluate.")]
Propensity = Annotated[
    str, typer.Option(metavar="A,B", help="Propensity constants; 0.6,2.6 for Amazon data.")
]
Category = Annotated[
    str, typer.Option(metavar="COLUMN", help="Item column by which the report groups datapoints.")
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Write an HTML report; its figures are saved next to it."),
]
Best = Annotated[int, typer.Option("-k", metavar="N", help="Labels per item.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Exact = Annotated[
    bool, typer.Option("--exact", help="Run the encoders in full precision, as trained; slower.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.")]


def _check_device(name: str) -> str:
    """Return the name if torch can use the device; do not import torch for the default."""
    if name != "auto":
        import torch

        try:
            torch.zeros(1, device=name)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"device {name!r} cannot be used: {reason}") from None
    return name


Device = Annotated[
    str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1, …", callback=_check_device)
]


def load_model(run: Path, device: str = "auto", exact: bool = False) -> Mufin:
    """Load the model in a folder."""
    from mufin.model.store import load

    return load(run, device, exact)


def parse_propensity(text: str) -> tuple[float, float]:
    """Return the constants A and B of --propensity."""
    try:
        a, b = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--propensity {text!r}: expected two numbers, such as 0.55,1.5") from None
    return a, b
