"""Render figures for light and dark pages, in colours that colour-blind readers can tell apart.

The page embeds SVG with text kept as text, so that the browser finds glyphs for any script. The light SVG and
a PNG, whose glyphs come from the installed fonts, are written beside the page.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from mufin.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

# Fonts for scripts that DejaVu lacks, used if installed.
FALLBACK_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Thai", "Hiragino Sans", "Microsoft YaHei",
    "PingFang SC", "Arial Unicode MS", "Noto Emoji", "Symbola",
)  # fmt: skip
PNG_DPI = 144
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


@dataclass(frozen=True)
class Theme:
    """The colours of a figure; `series` follows Okabe and Ito."""

    name: str
    text: str
    muted: str
    background: str
    series: tuple[str, ...]
    colormap: str  # perceptually uniform

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
class RenderedFigure:
    """A figure as bytes."""

    light: bytes  # SVG
    dark: bytes  # SVG
    png: bytes


def require_packages() -> None:
    """Raise if a package for reports is missing, before anything is computed."""
    try:
        import jinja2  # noqa: F401 - only whether it is there
        import matplotlib  # noqa: F401 - only whether it is there
        import sklearn  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError(
            f"a report needs {error.name}, which is not installed; run: pip install 'mufin[report]'"
        ) from error


def render(draw: Draw, size: tuple[float, float]) -> RenderedFigure:
    """Draw a figure of this size in inches as light and dark SVG and as PNG."""
    from matplotlib.figure import Figure as Canvas

    def drawn(theme: Theme, form: str) -> bytes:
        with _styled(theme):
            canvas = Canvas(figsize=size, layout="constrained", facecolor="none" if form == "svg" else None)
            draw(canvas, theme)
            buffer = io.BytesIO()
            metadata = {"Date": None} if form == "svg" else None
            canvas.savefig(buffer, format=form, dpi=PNG_DPI, metadata=metadata)
        return buffer.getvalue()

    return RenderedFigure(drawn(LIGHT, "svg"), drawn(DARK, "svg"), drawn(LIGHT, "png"))


def clean_axes(axes: Axes, theme: Theme, grid: Literal["x", "y"]) -> None:
    """Remove the top and right borders and draw grid lines for the values of one axis."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=theme.muted, linewidth=0.6)
    axes.set_axisbelow(True)


def name_axes(axes: Axes, method: str) -> None:
    """Label the axes of a map without ticks and borders, since only distances mean something."""
    axes.set_xlabel(f"{method}, first dimension")
    axes.set_ylabel(f"{method}, second dimension")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def truncate(text: str, length: int = 28) -> str:
    """Collapse white space and cut the text to a length.

    >>> truncate("a very long name of a category", 12)
    'a very long…'
    """
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


@cache
def _families() -> list[str]:
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in FALLBACK_FONTS if name in installed)]


@contextmanager
def _styled(theme: Theme) -> Iterator[None]:
    import matplotlib as mpl

    style: dict[Any, Any] = {
        "font.family": _families(), "font.size": 10, "axes.titlesize": 11, "svg.fonttype": "none",
        "svg.hashsalt": "mufin", "text.parse_math": False, "text.color": theme.text,
        "axes.labelcolor": theme.text, "axes.edgecolor": theme.text, "xtick.color": theme.text,
        "ytick.color": theme.text, "axes.facecolor": "none", "figure.facecolor": theme.background,
        "legend.frameon": False, "axes.unicode_minus": True,
    }  # fmt: skip
    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    with mpl.rc_context(style), warnings.catch_warnings():
        # Scripts without an installed font show as boxes in the PNG, but correctly in the page.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
