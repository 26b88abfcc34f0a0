"""`mufin import`: create a catalogue from other formats."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Quiet
from mufin.errors import UsageError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.imported import Imported
    from mufin.data.importers.tabular import Columns


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
Text = Annotated[str, typer.Option(metavar="COLUMN,…", help="Text columns, title first.")]
Image = Annotated[str, typer.Option(metavar="COLUMN,…", help="Image columns: paths, URLs or bytes.")]
LabelColumns = Annotated[str, typer.Option("--labels", metavar="COLUMN,…", help="Label columns.")]
Id = Annotated[str | None, typer.Option(metavar="COLUMN", help="Id column; without it, rows are numbered.")]
Category = Annotated[str | None, typer.Option(metavar="COLUMN", help="Category column.")]
SplitColumn = Annotated[
    str | None, typer.Option("--split", metavar="COLUMN", help="Column with the split: train, test, ….")
]
Separator = Annotated[str, typer.Option(metavar="TEXT", help="Separator of labels or images in a cell.")]
ItemLabels = Annotated[bool, typer.Option("--labels-are-items", help="Labels are ids of other rows.")]
ImagesDir = Annotated[
    Path | None,
    typer.Option("--images-dir", metavar="DIR", help="Folder of the image files; by default the table's."),
]
TestShare = Annotated[
    float, typer.Option(metavar="SHARE", help="Share of rows drawn for `test` if no split is given.")
]


@importing.command()
def amazon(
    sources: Sources,
    output: NewFolder,
    curate: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Rules to apply; mm-amazontitles: those of MM-AmazonTitles-300K."),
    ] = None,
    pictures: Annotated[
        int, typer.Option(metavar="N", help="With --curate: maximum images per product.")
    ] = 15,
    test: Annotated[
        float, typer.Option(metavar="SHARE", help="With --curate: share of test datapoints.")
    ] = 0.3,
    min_labels: Annotated[
        int, typer.Option(metavar="N", help="With --curate: minimum labels per datapoint.")
    ] = 1,
    min_points: Annotated[
        int, typer.Option(metavar="N", help="With --curate: minimum training datapoints per label.")
    ] = 1,
    keep_reciprocal: Annotated[
        bool,
        typer.Option(
            "--keep-reciprocal", help="With --curate: count a → b in test even if b → a is in train."
        ),
    ] = False,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Import Amazon product metadata of 2014, 2018 or 2023, plain or .gz.

    Labels are the products that were also bought. Images remain URLs; `mufin fetch-images` downloads them.

    \b
    Example:
      mufin import amazon meta_Office.json.gz -o office --curate mm-amazontitles
    """
    started = time.monotonic()
    from mufin.data.importers.amazon.curate import Curation
    from mufin.data.importers.amazon.importer import import_amazon
    from mufin.progress import Progress

    if curate not in (None, "mm-amazontitles"):
        raise UsageError(f"--curate {curate!r}: expected mm-amazontitles")
    rules = Curation(pictures, test, min_labels, min_points, not keep_reciprocal, seed)
    imported = import_amazon(sources, output, rules if curate else None, Progress(quiet or json))
    _report(imported, output, started, json, fetch=True)


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
def table(
    sources: Sources,
    output: NewFolder,
    text: Text = "",
    image: Image = "",
    images_dir: ImagesDir = None,
    labels: LabelColumns = "",
    id: Id = None,
    category: Category = None,
    split: SplitColumn = None,
    separator: Separator = "|",
    labels_are_items: ItemLabels = False,
    test: TestShare = 0.2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Import your own CSV, TSV, Parquet or JSON Lines files.

    Several files become splits named after them. Unless --labels-are-items is set, a label's id is also its
    text.

    \b
    Example:
      mufin import table products.csv -o shop --id sku --text title,description --image photo --labels tags
    """
    started = time.monotonic()
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.table import read_tables

    columns = _columns(
        text, image, labels, id, category, split, separator, labels_are_items, test, seed, images_dir
    )
    _write(read_tables(Catalogue, sources, columns), output, started, json)


@importing.command()
def dataset(
    source: Source,
    output: NewFolder,
    text: Text = "",
    image: Image = "",
    images_dir: ImagesDir = None,
    labels: LabelColumns = "",
    id: Id = None,
    category: Category = None,
    split: SplitColumn = None,
    separator: Separator = "|",
    labels_are_items: ItemLabels = False,
    test: TestShare = 0.2,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Import a Hugging Face dataset saved with `save_to_disk`.

    The library `datasets` is not required.

    \b
    Example:
      mufin import dataset saved/ -o shop --text caption --image image --labels tags
    """
    started = time.monotonic()
    from mufin.data.catalogue import Catalogue
    from mufin.data.importers.table import read_dataset

    columns = _columns(
        text, image, labels, id, category, split, separator, labels_are_items, test, seed, images_dir
    )
    _write(read_dataset(Catalogue, source, columns), output, started, json)


def _columns(
    text: str,
    image: str,
    labels: str,
    id: str | None,
    category: str | None,
    split: str | None,
    separator: str,
    labels_are_items: bool,
    test: float,
    seed: int,
    images_dir: Path | None,
) -> Columns:
    from mufin.data.importers.tabular import Columns

    if not text and not image:
        raise UsageError("no text or image columns; name them, such as --text title or --image photo")
    names = (_names(text), _names(image), _names(labels))
    if images_dir is not None and not images_dir.is_dir():
        raise UsageError(f"--images-dir {images_dir}: no such folder")
    return Columns(*names, id, category, split, separator, labels_are_items, test, seed, images_dir)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _write(catalogue: Catalogue, output: Path, started: float, json: bool) -> None:
    catalogue.write(output)
    if catalogue.imported is not None:
        fetch = "image_urls" in catalogue.items.table.column_names
        _report(catalogue.imported, output, started, json, fetch, catalogue.sets)


def _report(
    imported: Imported, output: Path, started: float, json: bool, fetch: bool, sets: list[str] | None = None
) -> None:
    """Print the result of an import and the next commands."""
    seconds = time.monotonic() - started
    if json:
        printing.show_json({"folder": output, **imported.to_json(), "seconds": round(seconds, 3)})
        return
    for line in imported.lines():
        typer.echo(line)
    typer.echo(f"Imported in {printing.duration(seconds)}; the catalogue is in {output}")
    training = f"mufin train {output} -o runs/{output.name}" + (f" --sets {sets[0]}" if sets else "")
    printing.show_next(
        [*([f"mufin fetch-images {output}"] if fetch else []), f"mufin check {output}", training]
    )
