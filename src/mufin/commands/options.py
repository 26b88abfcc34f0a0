"""Arguments and options that several commands share, and helpers that interpret them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.data.importers.records import Columns
    from mufin.model.mufin import Mufin
    from mufin.progress import Progress

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained model.")]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a catalogue.")]
NewRun = Annotated[Path, typer.Option("-o", "--output", metavar="RUN", help="Folder for the model.")]
Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="Catalogue folder; .csv, .tsv, .jsonl or .parquet file; or - for standard input.",
    ),
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
    str | None, typer.Option(metavar="NAME", help="Use only the items of this split of the catalogue.")
]
TestSplit = Annotated[str, typer.Option(metavar="NAME", help="Split to evaluate on.")]
Propensity = Annotated[
    str, typer.Option(metavar="A,B", help="Propensity constants; 0.6,2.6 for Amazon data.")
]
Category = Annotated[
    str, typer.Option(metavar="COLUMN", help="Item column by which to group datapoints in the report.")
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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]


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


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take groups of options: each field of a dataclass parameter becomes an option."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))
            continue
        types = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                one.name, parameter.KEYWORD_ONLY, default=one.default, annotation=types[one.name]
            )
            for one in fields(kind)
        ]

    @wraps(command, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        command(**given)

    run.__dict__["__signature__"] = inspect.Signature(parameters)
    run.__annotations__.clear()
    run.__annotations__.update({one.name: one.annotation for one in parameters})
    return run


@dataclass(frozen=True)
class TableOptions:
    """Which columns of a table to read, and what to do with bad rows."""

    text: Annotated[str, typer.Option(metavar="COLUMN,…", help="Text columns, title first.")] = ""
    image: Annotated[str, typer.Option(metavar="COLUMN,…", help="Image columns: paths, URLs or bytes.")] = ""
    images_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the image files; by default the table's.")
    ] = None
    id: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Id column; without it, rows are numbered.")
    ] = None
    separator: Annotated[
        str, typer.Option(metavar="TEXT", help="Separator of labels or images in a cell.")
    ] = "|"
    encoding: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Encoding of the file if it is not UTF-8, such as cp1252."),
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad row.")] = False
    max_bad_rows: Annotated[int, typer.Option(metavar="N", help="Stop if more than N rows are bad.")] = 100

    def columns(self, **others: Any) -> Columns:
        """Return the columns to read; by default, those of a catalogue."""
        from mufin.data.importers.records import Columns

        text, image, id = names_of(self.text), names_of(self.image), self.id
        if not text and not image:
            text, image, id = ["title", "texts"], ["images"], id or "id"
            others["lenient"] = True
        if self.images_dir is not None and not self.images_dir.is_dir():
            raise UsageError(f"--images-dir {self.images_dir}: no such folder")
        return Columns(
            text=text, image=image, images_dir=self.images_dir,
            id=id, separator=self.separator, encoding=self.encoding,
            max_bad_rows=0 if self.strict else self.max_bad_rows,
            **others,
        )  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """How to run a model, and what to print."""

    device: Device = "auto"
    exact: Exact = False
    json: Json = False
    quiet: Quiet = False

    def load(self, run: Path) -> Mufin:
        """Load the model in a folder."""
        return load_model(run, self.device, self.exact)

    def progress(self) -> Progress:
        """Return the progress to show."""
        from mufin.progress import Progress

        return Progress(self.quiet or self.json)


@dataclass(frozen=True)
class RayOptions:
    """Whether to spread the work over a Ray cluster, and which."""

    ray: Annotated[
        bool,
        typer.Option("--ray", help="Distribute the work over a Ray cluster, or the cores of this machine."),
    ] = False
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="HOST:PORT of the cluster, or auto; implies --ray."),
    ] = None

    @property
    def wanted(self) -> bool:
        """Whether to use Ray."""
        return self.ray or self.ray_address is not None


def names_of(text: str) -> list[str]:
    """Return the names in a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def check_new_file(path: Path, overwrite: bool, suffixes: tuple[str, ...] = ()) -> None:
    """Refuse a name with another suffix, or of an existing file unless `overwrite`; create its folder."""
    if suffixes and path.suffix not in suffixes:
        raise UsageError(f"{path}: expected a file name ending in {' or '.join(suffixes)}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; expected a file name")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists; choose another name, or replace it with --overwrite")
    path.parent.mkdir(parents=True, exist_ok=True)


def check_new_report(path: Path, overwrite: bool) -> None:
    """As `check_new_file`; the folder of its figures must not exist either."""
    check_new_file(path, overwrite)
    figures = path.with_suffix("")
    if figures.exists() and not overwrite:
        raise UsageError(
            f"{figures}, the folder for the figures, exists; choose another name, or add --overwrite"
        )


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
