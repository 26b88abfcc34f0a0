"""`mufin import`: create a catalogue from other formats."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Quiet, TableOptions, grouped, names_of
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.imported import Imported
    from mufin.data.importers.records import Columns


importing = typer.Typer(
    help="Create a catalogue from files in another format.\n\n\b\nExample:\n"
    "  mufin import table products.csv -o shop --text title --image photo --labels tags",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Sources = Annotated[list[Path], typer.Argument(metavar="SRC", help="One or more files.")]
Source = Annotated[Path, typer.Argument(metavar="SRC", help="Folder with the files.")]
NewFolder = Annotated[
    Path,
    typer.Option("-o", "--output", metavar="FOLDER", help="Folder for the catalogue; must be new or empty."),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Random seed for drawing test datapoints.")]


@dataclass(frozen=True)
class ImportOptions(TableOptions):
    """The columns of a table, its labels and its splits."""

    labels: Annotated[str, typer.Option(metavar="COLUMN,…", help="Label columns.")] = ""
    labels_are_items: Annotated[
        bool, typer.Option("--labels-are-items", help="Labels are ids of other rows.")
    ] = False
    category: Annotated[str | None, typer.Option(metavar="COLUMN", help="Category column.")] = None
    split: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column with the split: train, test, ….")
    ] = None
    test: Annotated[
        float,
        typer.Option(metavar="SHARE", help="Share of rows drawn for `test` if no split is given."),
    ] = 0.2
    seed: Seed = 0

    def columns(self, **others: Any) -> Columns:
        return super().columns(
            labels=names_of(self.labels), labels_are_items=self.labels_are_items, category=self.category,
            split=self.split, test=self.test, seed=self.seed, **others,
        )  # fmt: skip


@dataclass(frozen=True)
class CurateOptions:
    """The rules that `--curate` applies."""

    curate: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Rules to apply; mm-amazontitles: those of MM-AmazonTitles-300K."),
    ] = None
    pictures: Annotated[int, typer.Option(metavar="N", help="With --curate: maximum images per product.")] = (
        15
    )
    test: Annotated[float, typer.Option(metavar="SHARE", help="With --curate: share of test datapoints.")] = (
        0.3
    )
    min_labels: Annotated[
        int, typer.Option(metavar="N", help="With --curate: minimum labels per datapoint.")
    ] = 1
    min_points: Annotated[
        int, typer.Option(metavar="N", help="With --curate: minimum training datapoints per label.")
    ] = 1
    keep_reciprocal: Annotated[
        bool,
        typer.Option(
            "--keep-reciprocal", help="With --curate: count a → b in test even if b → a is in train."
        ),
    ] = False
    seed: Seed = 0


@importing.command()
@grouped
def amazon(
    sources: Sources,
    output: NewFolder,
    rules: CurateOptions,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import Amazon product metadata of 2014, 2018 or 2023, plain or .gz.

    Labels are the products that were also bought. Images are kept as URLs; `mufin fetch-images` downloads
    them.

    \b
    Example:
      mufin import amazon meta_Office.json.gz -o office --curate mm-amazontitles
    """
    started = time.monotonic()
    from mufin.data.importers.amazon.curate import Curation
    from mufin.data.importers.amazon.importer import import_amazon
    from mufin.progress import Progress

    if rules.curate not in (None, "mm-amazontitles"):
        raise UsageError(f"--curate {rules.curate!r}: expected mm-amazontitles")
    curation = Curation(
        rules.pictures, rules.test, rules.min_labels, rules.min_points, not rules.keep_reciprocal, rules.seed
    )
    imported = import_amazon(sources, output, curation if rules.curate else None, Progress(quiet or json))
    _report(imported, output, started, json)


@importing.command()
def xc(source: Source, output: NewFolder, json: Json = False, quiet: Quiet = False) -> None:
    """Import a dataset of the Extreme Classification Repository.

    Reads trn/tst/lbl.json(.gz), or the files of the released MUFIN: raw text, *_X_Y.txt, filter_labels_*.txt
    and img.bin.

    \b
    Example:
      mufin import xc LF-AmazonTitles-131K -o titles
    """
    started = time.monotonic()
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.xc import read_xc
    from mufin.progress import Progress

    _write(read_xc(Catalogue, source, Progress(quiet or json)), output, started, json)


@importing.command()
def polyvore(
    source: Source,
    output: NewFolder,
    variant: Annotated[
        str, typer.Option(metavar="disjoint|nondisjoint", help="Version of the splits.")
    ] = "disjoint",
    descriptions: Annotated[
        bool, typer.Option("--descriptions", help="Also read the long descriptions, unlike the paper.")
    ] = False,
    json: Json = False,
) -> None:
    """Import Polyvore Outfits: sets to train on and fill-in-the-blank questions.

    Texts are the short captions, as in the paper.

    \b
    Example:
      mufin import polyvore polyvore_outfits -o outfits --variant disjoint
    """
    started = time.monotonic()
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.polyvore import read_polyvore

    match variant:
        case "disjoint" | "nondisjoint":
            _write(read_polyvore(Catalogue, source, variant, descriptions), output, started, json)
        case _:
            raise UsageError(f"--variant {variant!r}: expected disjoint or nondisjoint")


@importing.command()
@grouped
def table(sources: Sources, output: NewFolder, options: ImportOptions, json: Json = False) -> None:
    """Import your own CSV, TSV, Parquet or JSON Lines files.

    Several files become splits named after them. Unless --labels-are-items is set, a label's id is also its
    text. Bad rows are skipped and listed: an empty or repeated id, a broken encoding, a missing or unreadable
    image.

    \b
    Example:
      mufin import table products.csv -o shop --id sku --text title,description --image photo --labels tags
    """
    started = time.monotonic()
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.table import column_names, read_tables

    if not options.text and not options.image:
        found = ", ".join(column_names(sources[0], options.encoding))
        raise UsageError(
            f"{sources[0]}: name the text or image columns, such as --text title or --image photo "
            f"(columns: {found})"
        )
    _write(read_tables(Catalogue, sources, options.columns()), output, started, json)


@importing.command()
@grouped
def dataset(source: Source, output: NewFolder, options: ImportOptions, json: Json = False) -> None:
    """Import a Hugging Face dataset saved with `save_to_disk`.

    The library `datasets` is not required.

    \b
    Example:
      mufin import dataset saved/ -o shop --text caption --image image --labels tags
    """
    started = time.monotonic()
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.table import read_dataset

    _write(read_dataset(Catalogue, source, options.columns()), output, started, json)


def _write(catalogue: Catalogue, output: Path, started: float, json: bool) -> None:
    catalogue.write(output)
    if catalogue.imported is not None:
        _report(catalogue.imported, output, started, json, catalogue)


def _report(
    imported: Imported, output: Path, started: float, json: bool, catalogue: Catalogue | None = None
) -> None:
    """Print the result of an import and the next commands; without a catalogue, of Amazon products."""
    seconds = time.monotonic() - started
    if json:
        printing.show_json({"folder": output, **imported.to_json(), "seconds": round(seconds, 3)})
        return
    printing.show_table(["", ""], imported.facts())
    for line in imported.lines() + (printing.bad_rows(imported.bad_rows) if imported.bad_rows else []):
        typer.echo(line)
    typer.echo(f"Imported in {printing.duration(seconds)}; the catalogue is in {output}")
    fetch = catalogue is None or "image_urls" in catalogue.items.table.column_names
    next_commands = [*([f"mufin fetch-images {output}"] if fetch else []), f"mufin check {output}"]
    run = f"runs/{output.name}"
    if catalogue is None or catalogue.splits or catalogue.sets:
        sets = f" --sets {catalogue.sets[0]}" if catalogue is not None and catalogue.sets else ""
        printing.show_next([*next_commands, f"mufin train {output} -o {run}{sets}"])
        return
    typer.echo(
        "The catalogue has no labels: a trained model can predict or embed its items, but none can be "
        "trained on it.\n"
        "To train, import it again with --labels COLUMN (or with --labels COLUMN --labels-are-items)."
    )
    if imported.unused:
        typer.echo(f"Unused columns: {', '.join(imported.unused)}")
    printing.show_next([*next_commands, f"mufin predict RUN {output} -o predictions.csv"])
