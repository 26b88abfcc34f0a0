"""check: read a catalogue folder to its end and say everything that is odd about it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from mufin.data.checked import Checked, load
from mufin.data.formats import files, jsonl, parquet
from mufin.data.formats.schema import kind_of
from mufin.data.images import open_picture
from mufin.data.items import Items, first_rows
from mufin.data.pictures import Encoded
from mufin.data.report import Problem, Report, SplitCounts
from mufin.errors import MufinError, PictureError

LONG_TEXT = 10_000  # characters; encoders read the first few dozen words
MISSING = "no such file"
BATCH = 512  # pictures between two calls of `progress`

Progress = Callable[[int, int], None]


def check(folder: str | Path, pictures: bool = True, progress: Progress | None = None) -> Report:
    """Everything that is in a folder and everything that is wrong with it; `pictures` decodes every picture.

    `progress(done, total)` hears of the pictures. Nothing that can stand in a file makes this raise.
    """
    report = Report(str(folder))
    try:
        found = _find(Path(folder), report)
    except MufinError as error:
        report.problems.append(Problem("error", _message(error, folder), str(folder)))
        return report
    if "items" not in found:
        there = ", ".join(path.name for path in found.values()) or "no table at all"
        message = f"no items.jsonl or items.parquet (found: {there}); write one"
        report.problems.append(Problem("error", message, str(folder)))
        return report
    _Folder(report, found, pictures, progress).check()
    return report


class _Folder:
    """The check of one folder: items first, then what refers to them."""

    def __init__(
        self, report: Report, found: dict[str, Path], pictures: bool, progress: Progress | None
    ) -> None:
        self.report, self.found = report, found
        self.pictures, self.progress = pictures, progress
        self.items: Items | None = None
        self.labels: Items | None = None

    def check(self) -> None:
        self._guarded(self.found.pop("items"), self._items)
        self.labels = self.items
        if "labels" in self.found:
            self.labels, self.report.own_labels = None, False
            self._guarded(self.found.pop("labels"), self._labels)
        self.report.labels = 0 if self.labels is None else len(self.labels)
        used: dict[str, tuple[Checked, np.ndarray, np.ndarray]] = {}
        for path in self.found.values():
            self._guarded(path, lambda path: self._other(path, used))
        self._across(used)

    def _guarded(self, path: Path, step: Callable[[Path], None]) -> None:
        """Run a step; whatever it raises becomes a problem of the file."""
        try:
            step(path)
        except MufinError as error:
            line = getattr(error, "line", None)
            message = _message(error, path)
            self.report.problems.append(Problem("error", message, path.name, line=line))
        except Exception as error:  # garbage finds ways that nobody foresaw; it must not end the check
            reason = f"cannot be checked: {type(error).__name__}: {error}"
            self.report.problems.append(Problem("error", reason, path.name))

    def _items(self, path: Path) -> None:
        checked = load(path, "items", self.report.problems)
        self.items = Items.from_file(checked.table, path)
        report = self.report
        report.items = len(self.items)
        texts, pictures = self._descriptors(checked, self.items)
        report.texts, report.pictures = int(texts.sum()), int(pictures.sum())
        report.items_without_text = int((texts == 0).sum())
        report.items_without_picture = int((pictures == 0).sum())
        if not len(self.items):
            report.problems.append(
                Problem("error", "no items in it; there is nothing to work with", path.name)
            )

    def _labels(self, path: Path) -> None:
        checked = load(path, "items", self.report.problems)
        self.labels = Items.from_file(checked.table, path)
        self._descriptors(checked, self.labels)
        if not len(self.labels):
            self.report.problems.append(Problem("error", "no labels in it", path.name))

    def _descriptors(self, checked: Checked, items: Items) -> tuple[np.ndarray, np.ndarray]:
        """Check ids, texts and pictures; how many texts and pictures each item has."""
        ids = items.ids
        checked.add("error", "no id; every item needs one", np.flatnonzero(ids.is_null().to_numpy()))
        repeated = np.flatnonzero(first_rows(ids, ids) != np.arange(len(ids)))
        repeated = repeated[ids.is_valid().to_numpy()[repeated]]
        checked.add("error", "id already given; make it unique", repeated, ids)
        offsets, flat = items.flat_texts()
        texts, pictures = np.diff(offsets), np.diff(items.pictures.offsets)
        empty = np.flatnonzero((texts == 0) & (pictures == 0))
        checked.add("warning", "item with neither text nor picture; it cannot be found", empty, ids)
        long = np.flatnonzero(pc.greater(pc.utf8_length(flat), LONG_TEXT).to_numpy(zero_copy_only=False))
        rows = np.unique(np.searchsorted(offsets, long, side="right") - 1)
        checked.add(
            "warning", f"text of more than {LONG_TEXT:,} characters; only its start is read", rows, ids
        )
        self._look(checked, items)
        return texts, pictures

    def _look(self, checked: Checked, items: Items) -> None:
        """Open every picture, or only see that its file is there."""
        offsets, flat = items.flat_images()
        broken: list[tuple[int, str]] = []
        missing: list[tuple[int, str]] = []
        outside: list[tuple[int, str]] = []
        for start in range(0, len(flat), BATCH):
            batch = [_named(flat, place) for place in range(start, min(start + BATCH, len(flat)))]
            for place, trouble in enumerate(_troubles(batch, self.pictures), start):
                row = int(np.searchsorted(offsets, place, side="right")) - 1
                picture = batch[place - start]
                if isinstance(picture, PictureError):
                    outside.append((row, str(picture)))
                elif trouble is MISSING:
                    missing.append((row, str(picture)))
                elif trouble is not None:
                    broken.append((row, trouble))
            if self.progress is not None:
                self.progress(start + len(batch), len(flat))
        checked.add_told("error", "image that is a link out of the folder", outside)
        checked.add_told("warning", "picture file that is not there; the item goes without it", missing)
        checked.add_told("warning", "picture that cannot be read; the item goes without it", broken)

    def _other(self, path: Path, used: dict[str, tuple[Checked, np.ndarray, np.ndarray]]) -> None:
        names = jsonl.columns(path) if path.suffix == ".jsonl" else parquet.columns(path)
        kind = kind_of(path.stem, names)
        if kind is None:
            message = f"columns {', '.join(names)} are none of ours; the file is not read"
            self.report.problems.append(Problem("warning", message, path.name))
            return
        checked = load(path, kind, self.report.problems)
        if self.items is None or self.labels is None:
            return  # nothing to compare with; that is an error of its own
        report, size = self.report, checked.table.num_rows
        match kind:
            case "split":
                used[path.stem] = (checked, *checked.pairs(self.items, self.labels, report.own_labels))
                report.splits[path.stem] = SplitCounts(size, len(used[path.stem][2]))
            case "filter":
                checked.known("id", self.items, "item")
                checked.known("label", self.labels, "label")
                report.filter_pairs = size
            case "sets":
                checked.sets(self.items)
                report.sets[path.stem] = size
            case "questions":
                checked.questions(self.items)
                report.questions[path.stem] = size

    def _across(self, used: dict[str, tuple[Checked, np.ndarray, np.ndarray]]) -> None:
        """What shows only when splits are seen together."""
        if not used and not self.report.sets:
            message = "neither a split (id, labels) nor sets (items): there is nothing to train on"
            self.report.problems.append(Problem("warning", message, self.report.folder))
        if "train" not in used or self.labels is None:
            return
        checked, points, columns = used["train"]
        if not len(columns):
            checked.problems.append(
                Problem("error", "no relevant pair; there is nothing to learn", checked.file)
            )
        unused = len(self.labels) - len(np.unique(columns))
        if unused:
            message = (
                f"{unused:,} of {len(self.labels):,} labels are never used; they are scored without training"
            )
            checked.problems.append(Problem("warning", message, checked.file))
        for name, (other, members, _) in used.items():
            if name != "train":
                both = np.flatnonzero(np.isin(members, points[points >= 0]))
                message = f"item that is also a point of {checked.file}; {name} then measures memory"
                other.add("warning", message, both, other.table.column("id"))


def _find(folder: Path, report: Report) -> dict[str, Path]:
    """As `files.find`, but a name in both formats is noted and the first one taken."""
    try:
        return files.find(folder)
    except MufinError as error:
        if not folder.is_dir():
            raise
        report.problems.append(Problem("error", _message(error, folder), str(folder)))
        paths = sorted(folder.iterdir(), reverse=True)
        return {path.stem: path for path in paths if path.suffix in files.SUFFIXES and path.is_file()}


def _named(pictures: Sequence[Encoded], place: int) -> Encoded | PictureError:
    """The bytes or the path of an image, or why a catalogue may not name it."""
    try:
        return pictures[place]
    except PictureError as error:
        return error


def _troubles(batch: list[Encoded | PictureError], decode: bool) -> list[str | None]:
    """For each picture what is wrong with it, or None; without `decode`, only files that are not there."""

    def trouble(picture: Encoded | PictureError) -> str | None:
        if isinstance(picture, PictureError):
            return str(picture)
        if isinstance(picture, Path) and not files.is_file(picture):
            return MISSING
        try:
            if decode:
                open_picture(picture, 64)
        except PictureError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(trouble, batch))


def _message(error: Exception, file: str | Path) -> str:
    """The message without the place, which the report says anyway."""
    line = getattr(error, "line", None)
    return str(error).removeprefix(f"{file}: " if line is None else f"{file}:{line}: ")
