"""The page: sections of paragraphs, tables, figures and galleries, as one HTML file that needs no other.

Everything that comes from a catalogue is a plain string here and is escaped by the template.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mufin.evaluate.report.figures import Draw, Drawing, render

Rows = Sequence[Sequence[str | int | float]]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers; also a CSV file of the same name beside the page."""

    name: str
    header: Sequence[str]
    rows: Rows
    left: int = 1  # columns that are words
    most: int = 60  # rows in the page; the file has all
    kind: str = "table"

    def csv(self) -> bytes:
        buffer = io.StringIO(newline="")
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *self.rows])
        return buffer.getvalue().encode()

    def shown(self, value: str | int | float) -> str:
        match value:
            case int():
                return f"{value:,}"
            case float():
                return f"{value:.4f}" if 0 < abs(value) < 1 else f"{value:.2f}"
            case _:
                return value


@dataclass(frozen=True)
class Figure:
    """A figure; also SVG and PNG files of the same name beside the page."""

    name: str
    caption: str
    alt: str  # what it shows, for those who cannot see it
    draw: Draw
    size: tuple[float, float] = (8.0, 3.6)  # inches
    kind: str = "figure"

    @cached_property
    def drawing(self) -> Drawing:
        return render(self.draw, self.size)

    @property
    def light(self) -> str:
        return data_uri(self.drawing.light, "image/svg+xml")

    @property
    def dark(self) -> str:
        return data_uri(self.drawing.dark, "image/svg+xml")


@dataclass(frozen=True)
class Card:
    """An item or a label, with its picture, and whether it is relevant where that is a question."""

    text: str
    note: str = ""
    picture: str = ""  # a data URI
    relevant: bool | None = None


@dataclass(frozen=True)
class Row:
    """A query and what belongs to it."""

    query: Card
    answers: Sequence[Card]
    title: str = ""


@dataclass(frozen=True)
class Gallery:
    """Queries, each beside what was found for it."""

    rows: Sequence[Row]
    kind: str = "gallery"


Block = Text | Table | Figure | Gallery


@dataclass(frozen=True)
class Section:
    """A part of the page with a title."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """The whole of it."""

    title: str
    facts: Sequence[tuple[str, str]]
    sections: list[Section]

    def html(self) -> str:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader("mufin.evaluate.report", "")
        environment = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.get_template("page.html").render(page=self)

    def write(self, path: Path) -> None:
        """The page at `path`, and what it is made of in the folder of the same name beside it."""
        folder = path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for block in (block for section in self.sections for block in section.blocks):
            match block:
                case Table():
                    (folder / f"{block.name}.csv").write_bytes(block.csv())
                case Figure():
                    (folder / f"{block.name}.svg").write_bytes(block.drawing.light)
                    (folder / f"{block.name}.png").write_bytes(block.drawing.png)
                case _:
                    pass
        path.write_text(self.html(), "utf-8")


def data_uri(content: bytes, kind: str) -> str:
    """The content as an address of its own.

    >>> data_uri(b"hi", "text/plain")
    'data:text/plain;base64,aGk='
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
