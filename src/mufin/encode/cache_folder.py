"""The folder of cached features; in a file of its own, so that `mufin cache` does not load torch."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = ".features"  # of the files


def cache_folder() -> Path:
    """Return `$MUFIN_CACHE`, else the user's cache folder."""
    named = os.environ.get("MUFIN_CACHE")
    if named:
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mufin"
    except RuntimeError:  # no home folder, as in some containers: nothing can be cached
        return Path(os.devnull) / "mufin"
