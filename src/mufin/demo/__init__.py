"""The embedded catalogue: icons and clip-art with what people type to find them (see README.md here)."""

from __future__ import annotations

from pathlib import Path


def folder() -> Path:
    """The folder of the embedded catalogue."""
    return Path(__file__).parent
