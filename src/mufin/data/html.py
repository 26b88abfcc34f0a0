"""HTML for notebooks: small escaped tables with thumbnails, without scripts or links to files."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, cast

from mufin.data.images import THUMBNAIL_SIDE, thumbnail

if TYPE_CHECKING:
    from mufin.data.item import Picture, Pixels

ROWS = 10  # of a table
IMAGES = 4  # of an item
TEXTS = 3  # of an item
CHARS = 80  # of a text


def image(picture: Picture) -> str:
    """Return the image as a small inline thumbnail, or nothing if it cannot be read."""
    small = thumbnail(picture)
    if small is None:
        return ""
    side = THUMBNAIL_SIDE // 2
    style = f"max-width:{side}px;max-height:{side}px"
    return f'<img alt="" style="{style}" src="data:image/webp;base64,{b64encode(small).decode()}">'


def text(value: str) -> str:
    """Return an escaped text of at most `CHARS` characters."""
    return escape(value if len(value) <= CHARS else f"{value[: CHARS - 1]}…")


def item(texts: Sequence[str], images: Sequence[Picture | Pixels]) -> str:
    """Return the images and texts of an item, each shortened to a few."""
    shown = [
        *(image(cast("Picture", one)) for one in images[:IMAGES]),
        *_more(len(images) - IMAGES, "images"),
    ]
    shown += [*("<div>" + text(one) + "</div>" for one in texts[:TEXTS]), *_more(len(texts) - TEXTS, "texts")]
    return " ".join(part for part in shown if part)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], total: int, caption: str = "") -> str:
    """Return a table of cells that are HTML already; `total` is the number of rows before shortening."""
    rows = list(rows)
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    rest = "".join(f"<p>{part}</p>" for part in _more(total - len(rows), "rows"))
    caption = f"<p>{escape(caption)}</p>" if caption else ""
    return f"<div>{caption}<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{rest}</div>"


def _more(count: int, what: str) -> list[str]:
    return [f"… and {count:,} more {what}"] if count > 0 else []
