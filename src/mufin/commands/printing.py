"""Print JSON for programs and tables for people; colours and rules only on a terminal."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mufin.progress import count as count

if TYPE_CHECKING:
    from mufin.evaluate.demo import Demo

RELEVANT = "✓"
WEIGHTS_SHOWN = 4  # of a mixture


def show_json(value: dict[str, Any]) -> None:
    """Print one JSON object; NaN and ∞, which JSON lacks, become null."""
    typer.echo(json.dumps(_plain(value), ensure_ascii=False))


def warn(text: str) -> None:
    """Print a warning on standard error."""
    typer.secho(text, err=True, fg="yellow")


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table; the first `left` columns are text, the others right-aligned numbers."""
    if sys.stdout.isatty():
        _rich_table(header, rows, left)
        return
    for line in plain_table(header, rows, left):
        typer.echo(line)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Return the lines of a table, aligned with spaces.

    >>> plain_table(["label", "score"], [["oak desk", "0.9"]])
    ['label     score', 'oak desk    0.9']
    """
    lines = [header, *rows] if any(header) else rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]

    def cell(i: int, text: str) -> str:
        return text.ljust(widths[i]) if i < left else text.rjust(widths[i])

    return ["  ".join(cell(i, text) for i, text in enumerate(line)).rstrip() for line in lines]


def show_next(commands: Sequence[str]) -> None:
    """Print the commands to try next."""
    typer.echo("\nTry next:")
    for command in commands:
        typer.echo(f"  {command}")


def bad_rows(rows: Sequence[str], most: int = 20) -> list[str]:
    """Format the number of bad rows and the first of them.

    >>> bad_rows(["a.csv, row 2: no id; skipped"])
    ['1 bad row', '  a.csv, row 2: no id; skipped']
    """
    lines = [count(len(rows), "bad row"), *(f"  {row}" for row in rows[:most])]
    more = len(rows) - most
    return [*lines, f"  … and {more:,} more; --json lists all"] if more > 0 else lines


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(7.26), duration(192)
    ('7.3 s', '3 min 12 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(number: int) -> str:
    """Format a number of bytes.

    >>> size(12_300_000)
    '12.3 MB'
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return count(number, "byte")


def show_metrics(scores: dict[str, dict[str, float]]) -> None:
    """Print one row per metric and one column per method."""
    names = list(next(iter(scores.values())))
    show_table(
        ["", *scores],
        [
            [name.replace("_", " "), *(_format_metric(name, values[name]) for values in scores.values())]
            for name in names
        ],
    )


def _format_metric(name: str, value: float) -> str:
    if name in ("points", "questions"):
        return f"{value:,.0f}"
    return f"{value:.2f}" if "@" in name or "ms" in name else f"{value:.4f}"


def show_demo(found: Demo) -> None:
    """Print the metrics of all methods and some predictions."""
    shown = ("P@1", "P@3", "P@5", "nDCG@5", "R@10", "PSP@5")
    rows = [[name, *(f"{values[metric]:.1f}" for metric in shown)] for name, values in found.scores.items()]
    show_table(["test split, %", *shown], rows)
    typer.echo(f"\nSome predictions for the test split ({RELEVANT} = relevant):")
    for example in found.examples:
        images = f"  [{count(example.pictures, 'image')}]" if example.pictures else ""
        typer.echo(f"  {example.text}{images}")
        marked = (
            typer.style(f"{label} {RELEVANT}", fg="green") if relevant else label
            for label, relevant in example.labels
        )
        typer.echo(f"    → {', '.join(marked)}")


def _mixture(weights: dict[str, float]) -> str:
    """List the weights of the paper's mixture; count those of a learnt one."""
    if len(weights) > WEIGHTS_SHOWN:
        return f"{len(weights)} learnt weights (--json lists them)"
    return ", ".join(f"{name} {weight:.3g}" for name, weight in weights.items())


def show_facts(facts: dict[str, Any]) -> None:
    """Print the facts that `mufin.model.info` returns."""
    alpha = facts["alpha"]
    same = " (the items themselves)" if facts["labels_are_items"] else ""
    lines = {
        "model": f"{facts['model']}, {size(facts['bytes'])}, written by mufin {facts['library']}",
        "labels": f"{facts['labels']:,}{same}, {count(facts['descriptors'], 'descriptor')}, "
        f"{facts['labels_without_centroid']:,} without a centroid",
        "D": str(facts["dim"]),
        "reads": {"both": "text and images", "text": "text", "image": "images"}[facts["modalities"]],
        "text encoder": facts["text_encoder"],
        "image encoder": facts["vision_encoder"],
        "memory": count(facts["memory"], "training datapoint") if facts["memory"] else "none",
        "mixture": _mixture({name: weight for name, weight in facts["mixture"].items() if weight}),
        "α": f"{alpha['min']:.2f} … {alpha['median']:.2f} … {alpha['max']:.2f} (minimum, median, maximum); "
        f"1 for {alpha['one']:.0%} of the labels"
        if alpha
        else "",
        "settings": f"preset {facts['preset']}{', and:' if facts['settings'] else ''}",
    }
    rows = [
        ["" if i else name, line]
        for name, value in lines.items()
        for i, line in enumerate(textwrap.wrap(value, 100, break_long_words=False, break_on_hyphens=False))
    ]
    show_table(["", ""], rows, left=2)
    for setting in facts["settings"]:
        typer.echo(f"  {setting}")


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case float():
            return value if math.isfinite(value) else None
        case Path():
            return str(value)
        case _:
            return value


def _rich_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=any(header), header_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i < left else "right")
    for row in rows:
        table.add_row(*(Text(text, style="green" if RELEVANT in text else "") for text in row))
    Console().print(table)
