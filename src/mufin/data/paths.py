"""Image paths of a catalogue: relative to its folder and inside it.

A catalogue may come from anyone. If its paths could name any file, serving or copying it would publish files
of this machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mufin.data.formats.schema import flatten
from mufin.errors import PictureError

LEAVING = r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)"  # absolute on any operating system, or with a ".."
REMEDY = "copy the image into the folder, or import the table with `mufin import table … --images-dir DIR`"


def leaving(images: pa.ChunkedArray) -> list[tuple[int, str]]:
    """Return (row, path) of the first path per row that is absolute or has a `..`; opens no file."""
    if not pa.types.is_string(images.type.value_type):
        return []
    offsets, flat = flatten(images)
    at = np.flatnonzero(pc.match_substring_regex(flat, LEAVING).to_numpy())
    rows, first = np.unique(np.searchsorted(offsets, at, side="right") - 1, return_index=True)
    return [(int(row), flat[int(place)].as_py()) for row, place in zip(rows, at[first], strict=True)]


def inside(path: Path, folder: str) -> Path:
    """Return the path if it stays inside the folder (a real path) after following symbolic links."""
    try:
        real = os.path.realpath(path)
    except ValueError:  # a NUL in the name; opening the file reports it
        return path
    if not os.path.normcase(real).startswith(os.path.normcase(folder).rstrip(os.sep) + os.sep):
        raise PictureError(f"leads out of {folder}; {REMEDY}", path)
    return path
