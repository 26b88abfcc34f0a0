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
        Path, typer.Argument(metavar="FILE", help="The new labels: items as .jsonl or .parquet.")
    ],
    json: Json = False,
) -> None:
    """Add labels to a model, without training.

    \b
    Example:
      mufin add-labels runs/shop new-labels.jsonl
    """
    from mufin.model.bulk import read_items_of
    from mufin.model.store import changing

    items = read_items_of(file)
    with changing(run) as model:
        model.add_labels(items)
    _report(model, f"Added {len(items):,}", {"added": len(items)}, json)


def remove_labels(
    run: Run,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of labels.")],
    json: Json = False,
) -> None:
    """Remove labels from a model.

    \b
    Example:
      mufin remove-labels runs/shop desk-1 desk-2
    """
    from mufin.model.store import changing

    with changing(run) as model:
        model.remove_labels(ids)
    _report(model, f"Removed {len(set(ids)):,}", {"removed": len(set(ids))}, json)


def _report(model: Mufin, done: str, counts: dict[str, int], json: bool) -> None:
    if json:
        printing.show_json({**counts, "labels": len(model.labels)})
    else:
        typer.echo(f"{done}; the model now has {len(model.labels):,} labels")
