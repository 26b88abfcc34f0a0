"""Download the images of a catalogue folder, and list the files in its tables.

`_fetched.jsonl` in the folder gets a line for each finished address at once, so that an interrupted run can
continue. At the end the files are listed in `images` of the tables, in the order of `image_urls`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from mufin.data.catalogue import read_items
from mufin.data.download.addresses import Failure, Settings
from mufin.data.download.fetch import fetch_all
from mufin.data.formats import files, jsonl, parquet
from mufin.data.formats.schema import STRINGS
from mufin.data.items import Items
from mufin.data.pictures import NoPictures
from mufin.data.write import save_picture
from mufin.errors import CatalogueError
from mufin.progress import QUIET, Progress

JOURNAL, FAILED = "_fetched.jsonl", "_failed.jsonl"
ROWS = 8192  # rows of a table written at a time
SHOWN = 5  # addresses listed per reason


@dataclass
class Fetched:
    """The result of a run."""

    wanted: int = 0  # distinct addresses
    kept: int = 0  # downloaded before
    fetched: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # address → reason

    def to_json(self) -> dict[str, Any]:
        """Return the counts, also by reason."""
        reasons = dict(Counter(self.failed.values()).most_common())
        return {
            "wanted": self.wanted,
            "fetched": self.fetched,
            "kept": self.kept,
            "failed": len(self.failed),
            "reasons": reasons,
        }

    def lines(self) -> list[str]:
        """Return the failures as lines of text."""
        lines = []
        for reason, count in Counter(self.failed.values()).most_common():
            lines.append(f"failed   {reason} ({count:,})")
            named = [url for url, why in self.failed.items() if why == reason][:SHOWN]
            lines += [f"           {url}" for url in named]
        return lines


def fetch_folder(
    folder: Path,
    settings: Settings,
    per_item: int | None = None,
    retry_failed: bool = False,
    progress: Progress = QUIET,
) -> Fetched:
    """Download the `image_urls` of a catalogue's tables, and list the files in `images`."""
    found = files.find(folder)
    if "items" not in found:
        raise CatalogueError("no items.jsonl or items.parquet", folder)
    tables = {name: read_items(found[name]) for name in ("items", "labels") if name in found}
    tables = {name: items for name, items in tables.items() if "image_urls" in items.table.column_names}
    if not tables:
        raise CatalogueError("no column image_urls: there is nothing to fetch", found["items"])
    wanted = dict.fromkeys(url for items in tables.values() for url in _urls(items, per_item))
    journal = Journal(folder)
    done = Fetched(wanted=len(wanted))
    missing = [url for url in wanted if not journal.settled(url, retry_failed)]
    done.kept = sum(url in journal.files for url in wanted)
    with progress.task("Fetching images", len(missing)) as task, journal:

        def outcome(url: str, result: str | Failure) -> None:
            journal.add(url, result)
            if isinstance(result, str):
                done.fetched += 1
            task.advance(failed=len(journal.failed))

        fetch_all(missing, folder, settings, outcome)
    for name, items in tables.items():
        _write(items, found[name], folder, journal.files, per_item)
    done.failed = {url: journal.failed[url] for url in wanted if url in journal.failed}
    jsonl.write(({"url": url, "reason": reason} for url, reason in done.failed.items()), folder / FAILED)
    return done


class Journal:
    """The outcome of each address, one line each on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / JOURNAL
        self.files: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.passing: set[str] = set()
        self.torn = False
        if self.path.is_file():
            with self.path.open("rb") as file:
                for line in file:
                    self._read(line)
                    self.torn = not line.endswith(b"\n")

    def _read(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            url, file, reason = entry["url"], entry.get("file"), entry.get("reason")
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # an interrupted write
        if isinstance(file, str) and (self.folder / file).is_file():
            self.files[url] = file
            self.failed.pop(url, None)
        elif reason is not None:
            self.failed[url] = reason
            if entry.get("passing"):
                self.passing.add(url)

    def settled(self, url: str, retry_failed: bool) -> bool:
        """Return whether an address needs no further attempt."""
        if url in self.files:
            return True
        return url in self.failed and url not in self.passing and not retry_failed

    def add(self, url: str, result: str | Failure) -> None:
        """Record the outcome of an address."""
        if isinstance(result, Failure):
            self.failed[url] = result.reason
            entry = {"url": url, "reason": result.reason, "passing": result.passing}
        else:
            self.files[url] = result
            self.failed.pop(url, None)
            entry = {"url": url, "file": result}
        self.file.write(json.dumps(entry, ensure_ascii=False) + "\n")

    def __enter__(self) -> Journal:
        self.file = self.path.open("a", encoding="utf-8", buffering=1)
        if self.torn:
            self.file.write("\n")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _urls(items: Items, per_item: int | None) -> Iterator[str]:
    for row in items.table.column("image_urls"):
        yield from row.as_py()[:per_item]


def _write(items: Items, path: Path, folder: Path, fetched: dict[str, str], per_item: int | None) -> None:
    """Write a table with image paths: those it had, then those fetched."""
    tables = (_slice(items, start, folder, fetched, per_item) for start in range(0, max(1, len(items)), ROWS))
    if path.suffix == ".parquet":
        parquet.write(tables, path)
    else:
        jsonl.write((row for table in tables for row in jsonl.rows(table)), path)


def _slice(items: Items, start: int, folder: Path, fetched: dict[str, str], per_item: int | None) -> pa.Table:
    table = items.table.slice(start, ROWS)
    images = []
    for row, urls in enumerate(table.column("image_urls").to_pylist(), start):
        new = [fetched[url] for url in urls[:per_item] if url in fetched]
        old = () if isinstance(items.pictures, NoPictures) else items.pictures.row(row)
        names = [
            save_picture(one, folder) if isinstance(one, bytes) else _relative(one, folder) for one in old
        ]
        images.append(list(dict.fromkeys([*(name for name in names if name not in new), *new])))
    return table.append_column("images", pa.array(images, STRINGS))


def _relative(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
