"""`mufin cache`: the outputs of encoders that are kept on disk."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import typer

from mufin.commands import printing
from mufin.commands.options import Json

caching = typer.Typer(
    help="Show or clear the feature cache.\n\n"
    "It keeps the outputs of frozen encoders, which makes later training runs faster.\n\n"
    "\b\nExample:\n  mufin cache info",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@caching.command()
def info(json: Json = False) -> None:
    """Show where the cache is, and how much of it each encoder uses.

    The folder is $MUFIN_CACHE, or mufin in the user's cache folder.

    \b
    Example:
      mufin cache info
      mufin cache info --json
    """
    from mufin.encode.cache_folder import cache_folder

    found = _stored(cache_folder())
    total = sum(one.bytes for one in found)
    if json:
        encoders = [{"encoder": one.encoder, "files": len(one.files), "bytes": one.bytes} for one in found]
        printing.show_json({"folder": cache_folder(), "bytes": total, "encoders": encoders})
        return
    typer.echo(f"{cache_folder()}: {printing.size(total)}")
    if found:
        day = [time.strftime("%Y-%m-%d", time.localtime(one.changed)) for one in found]
        rows = [
            [one.encoder, str(len(one.files)), printing.size(one.bytes), last]
            for one, last in zip(found, day, strict=True)
        ]
        printing.show_table(["encoder", "files", "size", "last written"], rows)


@caching.command()
def clear(json: Json = False) -> None:
    """Remove all cached features; models and catalogues are not affected.

    Features are recomputed when needed. Other files in the folder are kept.

    \b
    Example:
      MUFIN_CACHE=/data/cache mufin cache clear --json
    """
    from mufin.encode.cache_folder import cache_folder

    freed = sum(_remove(one) for one in _stored(cache_folder()))
    if json:
        printing.show_json({"folder": cache_folder(), "freed": freed})
    else:
        typer.echo(f"{cache_folder()}: {printing.size(freed)} freed")


@dataclass(frozen=True)
class _Stored:
    """The cached features of one encoder."""

    encoder: str  # its fingerprint
    files: list[Path]
    bytes: int
    changed: float  # seconds since 1970


def _stored(cache: Path) -> list[_Stored]:
    """List the cached features by encoder, including files of earlier formats."""
    from mufin.encode.cache_folder import SUFFIX

    found = []
    for folder in sorted(cache.glob("features-*/*/")):
        files = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX)
        with suppress(FileNotFoundError):  # another program has just removed one
            facts = [path.stat() for path in files]
            if files:
                last = max(one.st_mtime for one in facts)
                found.append(_Stored(folder.name, files, sum(one.st_size for one in facts), last))
    return found


def _remove(stored: _Stored) -> int:
    """Remove the files, and the folders if nothing else is in them; return the bytes freed."""
    for path in stored.files:
        path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        stored.files[0].parent.rmdir()
        stored.files[0].parent.parent.rmdir()
    return stored.bytes
