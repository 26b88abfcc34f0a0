"""Figures: drawn once in light and once in dark colours that colour-blind readers can tell apart.

The page holds SVG whose texts stay texts, so that a browser finds glyphs for any script; beside it lie the
light SVG and a PNG, whose glyphs come from the fonts installed here.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from mufin.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Fonts for scripts that DejaVu lacks, taken where they are installed.
FALLBACKS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Hiragino Sans", "Microsoft YaHei",
    "PingFang SC", "Arial Unicode MS", "Noto Emoji", "Symbola",
)  # fmt: skip
PNG_DPI = 144
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Theme:
    """The colours of a figure; `series` is after Okabe and Ito."""

    name: str
    text: str
    faint: str
    paper: str
    series: tuple[str, ...]
    heat: str  # a colour map that is even in lightness

    @property
    def good(self) -> str:
        return self.series[0]

    @property
    def bad(self) -> str:
        return self.series[1]


LIGHT = Theme(
    "light", "#1c1f23", "#c9ced6", "#ffffff",
    ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5d4a1f", "#7f7f7f"), "cividis",
)  # fmt: skip
DARK = Theme(
    "dark", "#e6e8eb", "#4a515b", "#16191d",
    ("#56b4e9", "#ff8f3a", "#2fc79a", "#e39cc4", "#f0c04a", "#9fd8ff", "#c9b27a", "#a8a8a8"), "cividis",
)  # fmt: skip

Draw = Callable[["Canvas", Theme], None]


@dataclass(frozen=True)
class Drawing:
    """A figure as bytes."""

    light: bytes  # SVG
    dark: bytes  # SVG
    png: bytes


def require() -> None:
    """An error that says what to install, before anything is computed."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
        import sklearn  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"a report needs {error.name}, which is not installed; run: pip install 'mufin[report]'"
        ) from error


def render(draw: Draw, size: tuple[float, float]) -> Drawing:
    """Draw a figure of this size in inches for light and dark pages, and as PNG."""
    from matplotlib.figure import Figure as Canvas

    def drawn(theme: Theme, form: str) -> bytes:
        with _styled(theme):
            canvas = Canvas(figsize=size, layout="constrained", facecolor="none" if form == "svg" else None)
            draw(canvas, theme)
            buffer = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else None
            canvas.savefig(buffer, format=form, dpi=PNG_DPI, metadata=metadata)
        return buffer.getvalue()

    return Drawing(drawn(LIGHT, "svg"), drawn(DARK, "svg"), drawn(LIGHT, "png"))


def bare(axes: Axes, theme: Theme, grid: str | None = None) -> None:
    """Only the axes that carry numbers, and lines to read values by along `grid` (x or y)."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid in ("x", "y"):
        axes.grid(axis="x" if grid == "x" else "y", color=theme.faint, linewidth=0.6)
        axes.set_axisbelow(True)


def shortened(text: str, length: int = 28) -> str:
    """A text on one line, cut to a length; `$` is no mathematics.

    >>> shortened("a very long name of a category", 12)
    'a very long…'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


@cache
def _families() -> list[str]:
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FALLBACKS if name in installed)]


@contextmanager
def _styled(theme: Theme) -> Iterator[None]:
    import matplotlib as mpl

    style: dict[Any, Any] = {
        "font.family": _families(), "font.size": 10, "axes.titlesize": 11, "svg.fonttype": "none",
        "svg.hashsalt": "mufin", "text.parse_math": False, "text.color": theme.text,
        "axes.labelcolor": theme.text, "axes.edgecolor": theme.text, "xtick.color": theme.text,
        "ytick.color": theme.text, "axes.facecolor": "none", "figure.facecolor": theme.paper,
        "legend.frameon": False, "axes.unicode_minus": True,
    }  # fmt: skip
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    with mpl.rc_context(style), warnings.catch_warnings():
        # A script that no installed font has is a box in the PNG, and right in the page.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
