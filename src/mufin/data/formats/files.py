"""The files of a catalogue folder: which there are, what each is, how to read one whatever its format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from mufin.data.formats import jsonl, parquet
from mufin.data.formats.schema import Kind, kind_of
from mufin.errors import CatalogueError

SUFFIXES = (".parquet", ".jsonl")


@dataclass(frozen=True)
class Part:
    """One named table of a catalogue: in a file, read when asked for, or in memory."""

    name: str
    kind: Kind
    source: Path | pa.Table

    @property
    def path(self) -> Path | None:
        """The file, for messages; None when the table was made in code."""
        return self.source if isinstance(self.source, Path) else None

    def table(self) -> pa.Table:
        """The rows, with the columns of the kind."""
        return read(self.source, self.kind) if isinstance(self.source, Path) else self.source

    def error(self, message: str, row: int | None = None) -> CatalogueError:
        """An error that says the file and the line (JSONL) or the row (Parquet)."""
        if row is None:
            return CatalogueError(message, self.path or self.name)
        if self.path is not None and self.path.suffix == ".jsonl":
            return CatalogueError(message, self.path, jsonl.lines_of(self.path, [row])[0])
        return CatalogueError(f"row {row + 1}: {message}", self.path or self.name)


def find(folder: Path) -> dict[str, Path]:
    """Name → file of every table in a folder; the same name in both formats is an error."""
    if not folder.is_dir():
        raise CatalogueError("no such folder; expected one with items.jsonl or items.parquet", folder)
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith((".", "_")) or not path.is_file():
            continue
        if path.stem in found:
            raise CatalogueError(f"beside {found[path.stem].name}: which of the two? Remove one", path)
        found[path.stem] = path
    return found


def is_file(path: Path) -> bool:
    """As `path.is_file()`, but False instead of an error for a name that is too long for a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def part(path: Path) -> Part | None:
    """The file as a part of a catalogue; None when its columns are none of ours."""
    names = jsonl.columns(path) if path.suffix == ".jsonl" else parquet.columns(path)
    kind = kind_of(path.stem, names)
    return None if kind is None else Part(path.stem, kind, path)


def read(path: Path, kind: Kind) -> pa.Table:
    """The table of a file, with the columns of its kind."""
    if not path.is_file():
        raise CatalogueError("no such file", path)
    return jsonl.read(path, kind) if path.suffix == ".jsonl" else parquet.read(path, kind)
