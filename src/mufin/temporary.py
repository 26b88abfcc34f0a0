"""Names of temporary files and folders: unique, and recognisably ours."""

from __future__ import annotations

import secrets
from pathlib import Path


def beside(path: Path) -> Path:
    """A new hidden name in the folder of `path`, for what takes the place of `path` once it is whole.

    Nothing else has this name, so that writing to it and removing it never touches a user's file.
    """
    return path.with_name(f".mufin-{secrets.token_hex(8)}.tmp")
