"""Every error a user can meet.

    MufinError
    ├── UsageError        a call or command that cannot mean anything (k = 0, an unknown option)
    ├── ConfigError       settings: an unknown key, a wrong value, a newer version
    ├── CatalogueError    data: a missing file, a bad line, an unknown id
    │   └── PictureError  a picture that cannot be read
    ├── EncoderError      weights that are not installed or do not fit
    └── ModelError        a model folder that is damaged, foreign or too new
        └── BusyError     a model folder that another program is writing to

The message says what was found, what was expected, where, and what to do.
"""

from __future__ import annotations

from pathlib import Path


class MufinError(Exception):
    """The root of the tree: catch it to catch them all."""


class UsageError(MufinError):
    """A call that cannot mean anything."""


class ConfigError(MufinError):
    """Settings that cannot be used."""


class CatalogueError(MufinError):
    """Data that cannot be used; says the file and, where there is one, the line."""

    def __init__(self, message: str, file: Path | str | None = None, line: int | None = None) -> None:
        self.file, self.line = file, line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)


class PictureError(CatalogueError):
    """A picture that cannot be read."""


class EncoderError(MufinError):
    """Encoder weights that are not installed, or do not fit."""


class ModelError(MufinError):
    """A model folder that is damaged, foreign or too new."""


class BusyError(ModelError):
    """A model folder that another program is writing to; nothing is wrong with it."""
