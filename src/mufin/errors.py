"""All errors that mufin raises for users.

    MufinError
    ├── UsageError        an invalid call or command (k = 0, an unknown option)
    │   └── InputTypeError   something that is not an item, a text or an image; also a TypeError
    ├── ConfigError       invalid settings: an unknown key, a wrong value, a newer version
    ├── CatalogueError    invalid data: a missing file, a bad line, an unknown id
    │   └── PictureError  an image that cannot be read
    ├── EncoderError      encoder weights that are not installed or do not fit
    ├── ServiceError      a service that refuses a call or cannot be reached
    └── ModelError        a model folder that is damaged, not mufin's, or too new
        └── BusyError     a model folder that another program is writing to

Each message says what was found, what was expected, where, and what to do.
"""

from __future__ import annotations

from pathlib import Path


class MufinError(Exception):
    """Base class of all mufin errors."""


class UsageError(MufinError):
    """An invalid call or command."""


class InputTypeError(UsageError, TypeError):
    """Something that is not an item, a text or an image."""


class ConfigError(MufinError):
    """Invalid settings."""


class CatalogueError(MufinError):
    """Invalid data; the message starts with the file and line, if known."""

    def __init__(self, message: str, file: Path | str | None = None, line: int | None = None) -> None:
        self.file, self.line = file, line
        where = "" if file is None else f"{file}: " if line is None else f"{file}:{line}: "
        super().__init__(where + message)


class PictureError(CatalogueError):
    """An image that cannot be read."""


class EncoderError(MufinError):
    """Encoder weights that are not installed or do not fit."""


class ServiceError(MufinError):
    """A service that refuses a call or cannot be reached; `status` is the HTTP status, if it answered."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ModelError(MufinError):
    """A model folder that is damaged, not mufin's, or too new."""


class BusyError(ModelError):
    """A model folder that another program is writing to; try again later."""
