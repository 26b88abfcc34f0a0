"""An output folder that is written part by part: what it holds the results of, and which parts are finished.

    _mufin.json           what was asked: model, settings, input files
    _done.jsonl           a line per finished part: its name, and counts of items
    part-00000000.parquet the results of the first rows, and so on in the order of the input

A part appears complete or not at all. It is finished when its line is there: whatever stops a command, the
same command goes on with the other parts. Readers of Parquet folders skip names that begin with "_".
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mufin.data.formats.parquet import explained, open_parquet
from mufin.errors import CatalogueError, UsageError
from mufin.files.folder import temporary_path
from mufin.files.lock import writing
from mufin.model.blocks import Span
from mufin.model.bulk import Summary
from mufin.train.checkpoint import differences

ASKED, DONE = "_mufin.json", "_done.jsonl"
ROWS = 1024  # per part, or a multiple: rows are read and predicted so many at a time
PARTS = 1000  # of a large input, about
MAX_MULTIPLE = 16  # of `ROWS` in a part: a killed worker repeats at most one part
PATIENCE = 10.0  # seconds to wait for another command that writes to the folder


@dataclass(frozen=True)
class Part:
    """Some rows of an input file, and the name of the file with their results."""

    name: str
    source: Path
    span: Span


def input_files(path: Path) -> list[Path]:
    """Return a Parquet file, or those in a folder, sorted by name."""
    if path.is_dir():
        found = sorted(one for one in path.glob("*.parquet") if not one.name.startswith((".", "_")))
        if found and not any(one.stem == "items" for one in found):
            return found
        if found:
            items = path / "items.parquet"
            raise UsageError(f"{path} is a catalogue folder; with --ray, name its items: {items}")
        raise UsageError(f"{path} has no .parquet files; with --ray, expected some")
    if path.suffix != ".parquet":
        raise UsageError(f"{path}: with --ray, expected a .parquet file or a folder of .parquet files")
    if not path.is_file():
        raise CatalogueError("no such file", path)
    return [path]


def parts_of(files: Sequence[Path]) -> list[Part]:
    """Divide the rows of all files into parts; the same files always give the same parts."""
    sizes = [_rows(path) for path in files]
    step = ROWS * min(max(sum(sizes) // (ROWS * PARTS), 1), MAX_MULTIPLE)
    parts: list[Part] = []
    before = 0
    for path, size in zip(files, sizes, strict=True):
        for start in range(0, size, step):
            span = Span(range(start, min(start + step, size)), before)
            parts.append(Part(f"part-{len(parts):08d}.parquet", path.absolute(), span))
        before += size
    return parts


def facts_of(files: Sequence[Path]) -> dict[str, Any]:
    """Return facts of each file by which another is recognised."""
    stats = {path.name: path.stat() for path in files}
    return {name: {"bytes": one.st_size, "modified": one.st_mtime_ns} for name, one in stats.items()}


def _rows(path: Path) -> int:
    with explained(path):
        return int(open_parquet(path).metadata.num_rows)


class OutputFolder:
    """The folder for the parts; use `opened`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, Summary] = {}

    @classmethod
    @contextmanager
    def opened(cls, path: Path, asked: dict[str, Any], overwrite: bool) -> Iterator[OutputFolder]:
        """Open a folder, new or with parts of the same work; lock it against other commands."""
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is a file; with --ray, expected a folder for the results")
        path.mkdir(parents=True, exist_ok=True)
        with writing(path, PATIENCE):
            folder = cls(path.absolute())
            folder._remove_unfinished()
            folder._begin(json.loads(json.dumps(asked)), overwrite)
            try:
                yield folder
            finally:
                folder._remove_unfinished()

    def note(self, part: Part, summary: Summary) -> None:
        """Record that a part is finished."""
        line = json.dumps({"part": part.name, **vars(summary)}, ensure_ascii=False)
        with (self.path / DONE).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        self.done[part.name] = summary

    def open_parts(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts that are not finished."""
        return [part for part in parts if not self._is_finished(part)]

    def summary(self) -> Summary:
        """Return the counts of all finished parts."""
        done = [self.done[name] for name in sorted(self.done)]
        bad_rows = [row for one in done for row in one.bad_rows]
        return Summary(sum(one.items for one in done), sum(one.empty for one in done), bad_rows)

    def _is_finished(self, part: Part) -> bool:
        """Whether a part was noted and its file is there, with all rows."""
        if part.name not in self.done:
            return False
        with suppress(CatalogueError):
            if _rows(self.path / part.name) == len(part.span.rows):
                return True
        del self.done[part.name]
        return False

    def _begin(self, asked: dict[str, Any], overwrite: bool) -> None:
        """Read what is finished; refuse a folder with anything else, or remove its parts to overwrite."""
        before = _read_json(self.path / ASKED)
        if before is not None and not overwrite:
            if changes := differences(before, asked):
                raise UsageError(
                    f"{self.path} holds other results: {'; '.join(changes[:5])}; "
                    "choose another folder, or replace them with --overwrite"
                )
            self.done = dict(_read_done(self.path / DONE))
            with (self.path / DONE).open("a", encoding="utf-8") as file:
                file.write("\n")  # ends a line that was cut short
            return
        if before is None and any(one.name != ".mufin.lock" for one in self.path.iterdir()):
            raise UsageError(f"{self.path} is not empty and has no {ASKED}; choose another folder")
        for old in [self.path / DONE, *self.path.glob("part-*.parquet")]:
            old.unlink(missing_ok=True)
        temporary = temporary_path(self.path / ASKED)
        temporary.write_text(json.dumps(asked, indent=1), "utf-8")
        temporary.replace(self.path / ASKED)

    def _remove_unfinished(self) -> None:
        """Remove what killed workers were writing."""
        for path in self.path.glob(".mufin-*.tmp"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{path} is damaged; remove its folder, or choose another one")
    return found


def _read_done(path: Path) -> Iterator[tuple[str, Summary]]:
    """Yield the finished parts; a last line that was cut short is none."""
    with suppress(FileNotFoundError):
        for line in path.read_text("utf-8", "replace").splitlines():
            with suppress(ValueError, TypeError, KeyError):
                row = json.loads(line)
                yield str(row.pop("part")), Summary(**row)
