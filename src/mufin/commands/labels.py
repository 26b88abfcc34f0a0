"""`mufin add-labels` and `mufin remove-labels`: change the labels of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Json, Run

if TYPE_CHECKING:
    from mufin.model.mufin import Mufin


def add_labels(
    run: Run,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="New labels: a .jsonl or .parquet file of items.")
    ],
    json: Json = False,
) -> None:
    """Add labels to a model without training.

    \b
    Example:
      mufin add-labels runs/shop new-labels.jsonl
    """
    from mufin.model.bulk import read_item_file
    from mufin.model.store import editing_labels

    items = read_item_file(file)
    with editing_labels(run) as model:
        model.add_labels(items)
    _report(model, "added", len(items), json)


def remove_labels(
    run: Run,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the labels.")],
    json: Json = False,
) -> None:
    """Remove labels from a model.

    \b
    Example:
      mufin remove-labels runs/shop desk-1 desk-2
    """
    from mufin.model.store import editing_labels

    with editing_labels(run) as model:
        model.remove_labels(ids)
    _report(model, "removed", len(set(ids)), json)


def _report(model: Mufin, change: str, changed: int, json: bool) -> None:
    """Print the number of labels added or removed, and the number of labels now."""
    if json:
        printing.show_json({change: changed, "labels": len(model.labels)})
    else:
        labels = printing.count(len(model.labels), "label")
        typer.echo(f"{change.capitalize()} {printing.count(changed, 'label')}; the model now has {labels}")
