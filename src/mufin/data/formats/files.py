"""Find, classify and read the tables of a catalogue folder, in either format."""

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
    """One named table of a catalogue, in memory or in a file that is read on demand."""

    name: str
    kind: Kind
    source: Path | pa.Table

    @property
    def path(self) -> Path | None:
        """The file, for messages; None for a table in memory."""
        return self.source if isinstance(self.source, Path) else None

    def table(self) -> pa.Table:
        """Return the rows, with the columns of the kind."""
        return read(self.source, self.kind) if isinstance(self.source, Path) else self.source

    def error(self, message: str, row: int | None = None) -> CatalogueError:
        """Return an error that names the file and the line (JSONL) or row (Parquet)."""
        if row is None:
            return CatalogueError(message, self.path or self.name)
        if self.path is not None and self.path.suffix == ".jsonl":
            return CatalogueError(message, self.path, jsonl.lines_of(self.path, [row])[0])
        return CatalogueError(f"row {row + 1}: {message}", self.path or self.name)


IMPORT = "make one with: mufin import table {} -o DIR --text COLUMN,… --labels COLUMN"
IMPORTED = (".csv", ".tsv")  # tables that are not those of a catalogue


def require_folder(folder: Path) -> None:
    """Raise CatalogueError unless the folder exists; for a table, name the command that imports it."""
    if is_file(folder):
        raise CatalogueError(f"a file, but expected a catalogue folder; {IMPORT.format(folder)}", folder)
    if not folder.is_dir():
        raise CatalogueError("no such folder; expected one with items.jsonl or items.parquet", folder)


def find(folder: Path) -> dict[str, Path]:
    """Return name → file of every table in a folder; one name in both formats is an error."""
    require_folder(folder)
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith((".", "_")) or not path.is_file():
            continue
        if path.stem in found:
            raise CatalogueError(f"{found[path.stem].name} exists, too; remove one of the two", path)
        found[path.stem] = path
    return found


def no_items(folder: Path, found: dict[str, Path]) -> str:
    """Say that a folder with these tables has no items, and how to get some."""
    others = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMPORTED and not found]
    there = ", ".join(path.name for path in [*found.values(), *others][:5]) or "no tables"
    remedy = f"if it is no catalogue, {IMPORT.format(others[0])}" if others else "add one"
    return f"no items.jsonl or items.parquet (found: {there}); {remedy}"


def is_file(path: Path) -> bool:
    """Return `path.is_file()`, or False where a path is too long or not valid."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def part(path: Path) -> Part | None:
    """Return a file as a part of a catalogue; None if its columns match no kind of table."""
    names = jsonl.columns(path) if path.suffix == ".jsonl" else parquet.columns(path)
    kind = kind_of(path.stem, names)
    return None if kind is None else Part(path.stem, kind, path)


def read(path: Path, kind: Kind) -> pa.Table:
    """Read a table, with the columns of its kind."""
    if not path.is_file():
        raise CatalogueError("no such file", path)
    return jsonl.read(path, kind) if path.suffix == ".jsonl" else parquet.read(path, kind)
