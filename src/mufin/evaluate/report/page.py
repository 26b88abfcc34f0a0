"""Page: sections of paragraphs, tables, figures and galleries, rendered as one self-contained HTML file.

Catalogue texts are plain strings here; the template escapes them.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mufin.evaluate.report.figures import Draw, RenderedFigure, render

Rows = Sequence[Sequence[str | int | float]]


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: str = "text"


@dataclass(frozen=True)
class Table:
    """A table, also written as a CSV file of the same name."""

    name: str
    header: Sequence[str]
    rows: Rows
    text_columns: int = 1  # leading columns that are text
    max_rows: int = 60  # on the page; the CSV file has all
    kind: str = "table"

    def csv(self) -> bytes:
        buffer = io.StringIO(newline="")
        csv.writer(buffer, lineterminator="\n").writerows([self.header, *self.rows])
        return buffer.getvalue().encode()

    def format(self, value: str | int | float) -> str:
        match value:
            case int():
                return f"{value:,}"
            case float():
                return f"{value:.4f}" if 0 < abs(value) < 1 else f"{value:.2f}"
            case _:
                return value


@dataclass(frozen=True)
class Figure:
    """A figure, also written as SVG and PNG files of the same name."""

    name: str
    caption: str
    alt: str  # the alternative text for screen readers
    draw: Draw
    size: tuple[float, float] = (8.0, 3.6)  # inches
    kind: str = "figure"

    @cached_property
    def rendered(self) -> RenderedFigure:
        return render(self.draw, self.size)

    @property
    def light(self) -> str:
        return data_uri(self.rendered.light, "image/svg+xml")

    @property
    def dark(self) -> str:
        return data_uri(self.rendered.dark, "image/svg+xml")


@dataclass(frozen=True)
class Card:
    """An item or a label with its image; labels may be marked relevant or not, or with other words."""

    text: str
    note: str = ""
    image: str = ""  # a data URI
    relevant: bool | None = None
    mark: str = ""  # instead of "relevant" or "not relevant"


@dataclass(frozen=True)
class QueryRow:
    """A query and its labels."""

    query: Card
    labels: Sequence[Card]
    title: str = ""


@dataclass(frozen=True)
class Gallery:
    """Queries, each beside its labels."""

    rows: Sequence[QueryRow]
    kind: str = "gallery"


Block = Text | Table | Figure | Gallery


@dataclass(frozen=True)
class Section:
    """A titled section; `name` is its anchor."""

    name: str
    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing but text, since what it shows does not apply here."""
        return all(isinstance(block, Text) for block in self.blocks)


@dataclass(frozen=True)
class Page:
    """The whole page."""

    title: str
    summary: Sequence[tuple[str, str]]
    sections: list[Section]

    @property
    def shown(self) -> list[Section]:
        return [section for section in self.sections if not section.empty]

    @property
    def left_out(self) -> list[tuple[str, str]]:
        """Title and reason of each section that would be empty."""
        return [
            (section.title, " ".join(block.text for block in section.blocks if isinstance(block, Text)))
            for section in self.sections
            if section.empty
        ]

    def html(self) -> str:
        from jinja2 import Environment, PackageLoader, StrictUndefined

        loader = PackageLoader("mufin.evaluate.report", "")
        environment = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        return environment.get_template("page.html").render(page=self)

    def write(self, path: Path) -> None:
        """Write the page to `path`, and its figures and tables to the folder of the same name."""
        folder = path.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        for block in (block for section in self.sections for block in section.blocks):
            match block:
                case Table():
                    (folder / f"{block.name}.csv").write_bytes(block.csv())
                case Figure():
                    (folder / f"{block.name}.svg").write_bytes(block.rendered.light)
                    (folder / f"{block.name}.png").write_bytes(block.rendered.png)
                case _:
                    pass
        path.write_text(self.html(), "utf-8")


def data_uri(content: bytes, kind: str) -> str:
    """Encode the content as a data URI.

    >>> data_uri(b"hi", "text/plain")
    'data:text/plain;base64,aGk='
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
