"""check: read a whole catalogue folder and report every problem in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from mufin.data.check_report import CheckReport, Problem, SplitCounts
from mufin.data.check_table import CheckedTable, load_table
from mufin.data.formats import files, jsonl, parquet
from mufin.data.formats.schema import kind_of
from mufin.data.images import open_picture
from mufin.data.items import Items, first_rows
from mufin.data.pictures import Encoded
from mufin.errors import MufinError, PictureError
from mufin.progress import QUIET, Progress

LONG_TEXT = 10_000  # characters; encoders read only the first few dozen words
HTML = r"</[a-z]+[0-9]?>|<br */?>|&(amp|lt|gt|quot|nbsp|#[0-9]+);"  # a closing tag, <br>, or an entity
NOT_FOUND = "no such file"
IMAGES_PER_BATCH = 512  # between two reports of progress


def check(folder: str | Path, decode: bool = True, progress: Progress = QUIET) -> CheckReport:
    """Report the contents and the problems of a catalogue folder; `decode` opens every image.

    Never raises, whatever the files contain.
    """
    report = CheckReport(str(folder))
    try:
        found = _find(Path(folder), report)
    except MufinError as error:
        report.problems.append(Problem("error", _message(error, folder), str(folder)))
        return report
    if "items" not in found:
        report.problems.append(Problem("error", files.no_items(Path(folder), found), str(folder)))
        return report
    _FolderCheck(report, found, decode, progress).run()
    return report


Pairs = tuple[CheckedTable, np.ndarray, np.ndarray]  # a split, its item rows, its label rows


class _FolderCheck:
    """The check of one folder: first items and labels, then the tables that refer to them."""

    def __init__(self, report: CheckReport, found: dict[str, Path], decode: bool, progress: Progress) -> None:
        self.report, self.found = report, found
        self.decode, self.progress = decode, progress
        self.items: Items | None = None
        self.labels: Items | None = None

    def run(self) -> None:
        self._guarded(self.found.pop("items"), self._check_items)
        self.labels = self.items
        if "labels" in self.found:
            self.labels, self.report.own_labels = None, False
            self._guarded(self.found.pop("labels"), self._check_labels)
        self.report.labels = 0 if self.labels is None else len(self.labels)
        splits: dict[str, Pairs] = {}
        for path in self.found.values():
            self._guarded(path, lambda path: self._check_other(path, splits))
        self._compare_splits(splits)

    def _guarded(self, path: Path, step: Callable[[Path], None]) -> None:
        """Run a step; report any exception as a problem of the file."""
        try:
            step(path)
        except MufinError as error:
            line = getattr(error, "line", None)
            message = _message(error, path)
            self.report.problems.append(Problem("error", message, path.name, line=line))
        except Exception as error:  # damaged files fail in unforeseen ways, and the check must go on
            reason = f"cannot be checked: {type(error).__name__}: {error}"
            self.report.problems.append(Problem("error", reason, path.name))

    def _check_items(self, path: Path) -> None:
        checked = load_table(path, "items", self.report.problems)
        self.items = Items.from_file(checked.table, path)
        report = self.report
        report.items = len(self.items)
        texts, images = self._check_descriptors(checked, self.items)
        report.texts, report.pictures = int(texts.sum()), int(images.sum())
        report.items_without_text = int((texts == 0).sum())
        report.items_without_picture = int((images == 0).sum())
        if not len(self.items):
            report.problems.append(Problem("error", "no items; add at least one", path.name))

    def _check_labels(self, path: Path) -> None:
        checked = load_table(path, "items", self.report.problems)
        self.labels = Items.from_file(checked.table, path)
        self._check_descriptors(checked, self.labels)
        if not len(self.labels):
            self.report.problems.append(
                Problem(
                    "error", "no labels; add some, or delete the file to use the items as labels", path.name
                )
            )

    def _check_descriptors(self, checked: CheckedTable, items: Items) -> tuple[np.ndarray, np.ndarray]:
        """Check ids, texts and images; return the number of texts and of images per item."""
        ids = items.ids
        checked.add("error", "missing id; every item needs one", np.flatnonzero(ids.is_null().to_numpy()))
        repeated = np.flatnonzero(first_rows(ids, ids) != np.arange(len(ids)))
        repeated = repeated[ids.is_valid().to_numpy()[repeated]]
        checked.add("error", "duplicate id; make it unique", repeated, ids)
        offsets, flat = items.flat_texts()
        texts, images = np.diff(offsets), np.diff(items.pictures.offsets)
        empty = np.flatnonzero((texts == 0) & (images == 0))
        checked.add("warning", "item has neither text nor image; it cannot be found", empty, ids)
        warnings = {
            f"text longer than {LONG_TEXT:,} characters; only its beginning is read": pc.greater(
                pc.utf8_length(flat), LONG_TEXT
            ),
            "text contains HTML, which is read as words; remove tags and entities": (
                pc.match_substring_regex(flat, HTML)
            ),
        }
        for warning, found in warnings.items():
            places = np.flatnonzero(found.to_numpy(zero_copy_only=False))
            rows = np.unique(np.searchsorted(offsets, places, side="right") - 1)
            checked.add("warning", warning, rows, ids)
        self._check_images(checked, items)
        return texts, images

    def _check_images(self, checked: CheckedTable, items: Items) -> None:
        """Decode every image, or only check that its file exists."""
        offsets, flat = items.flat_images()
        broken: list[tuple[int, str]] = []
        missing: list[tuple[int, str]] = []
        outside: list[tuple[int, str]] = []
        with self.progress.task("Checking images", len(flat)) as task:
            for start in range(0, len(flat), IMAGES_PER_BATCH):
                batch = [_image_at(flat, i) for i in range(start, min(start + IMAGES_PER_BATCH, len(flat)))]
                for i, (image, fault) in enumerate(
                    zip(batch, _faults(batch, self.decode), strict=True), start
                ):
                    row = int(np.searchsorted(offsets, i, side="right")) - 1
                    if isinstance(image, PictureError):
                        outside.append((row, str(image)))
                    elif fault is NOT_FOUND:
                        missing.append((row, str(image)))
                    elif fault is not None:
                        broken.append((row, fault))
                task.advance(len(batch))
        checked.add_detailed(
            "error", "image is a symbolic link out of the folder; copy the image into the folder", outside
        )
        checked.add_detailed("warning", "image file not found; the item is used without it", missing)
        checked.add_detailed("warning", "image cannot be read; the item is used without it", broken)

    def _check_other(self, path: Path, splits: dict[str, Pairs]) -> None:
        """Check a split, filter, sets or questions; collect the splits."""
        names = jsonl.columns(path) if path.suffix == ".jsonl" else parquet.columns(path)
        kind = kind_of(path.stem, names)
        if kind is None:
            message = f"not a table of a catalogue (columns: {', '.join(names)}); ignored"
            self.report.problems.append(Problem("warning", message, path.name))
            return
        checked = load_table(path, kind, self.report.problems)
        if self.items is None or self.labels is None:
            return  # no ids to look up; already reported as an error
        report, size = self.report, checked.table.num_rows
        match kind:
            case "split":
                points, pairs = checked.check_split(self.items, self.labels, report.own_labels)
                splits[path.stem] = (checked, points, pairs)
                report.splits[path.stem] = SplitCounts(size, len(pairs))
            case "filter":
                checked.find_rows("id", self.items, "item")
                checked.find_rows("label", self.labels, "label")
                report.filter_pairs = size
            case "sets":
                checked.check_sets(self.items)
                report.sets[path.stem] = size
            case "questions":
                checked.check_questions(self.items)
                report.questions[path.stem] = size

    def _compare_splits(self, splits: dict[str, Pairs]) -> None:
        """Report labels without training points, and items that two splits share."""
        if not splits and not self.report.sets:
            message = "nothing to train on; add a split (columns id, labels) or sets (column items)"
            self.report.problems.append(Problem("warning", message, self.report.folder))
        if "train" not in splits or self.labels is None:
            return
        checked, points, columns = splits["train"]
        if not len(columns):
            checked.problems.append(
                Problem("error", "no point has a known label; there is nothing to learn from", checked.file)
            )
        unused = len(self.labels) - len(np.unique(columns))
        if unused:
            count = f"{unused:,} of {len(self.labels):,} labels"
            message = f"{count} have no training point; they are scored without training"
            checked.problems.append(Problem("warning", message, checked.file))
        for name, (other, members, _) in splits.items():
            if name != "train":
                both = np.flatnonzero(np.isin(members, points[points >= 0]))
                message = f"item is also a point of {checked.file}; metrics on {name} will be too high"
                other.add("warning", message, both, other.table.column("id"))


def _find(folder: Path, report: CheckReport) -> dict[str, Path]:
    """As `files.find`, but report a table in both formats and use the JSONL file."""
    try:
        return files.find(folder)
    except MufinError as error:
        if not folder.is_dir():
            raise
        report.problems.append(Problem("error", _message(error, folder), str(folder)))
        paths = sorted(folder.iterdir(), reverse=True)
        return {path.stem: path for path in paths if path.suffix in files.SUFFIXES and path.is_file()}


def _image_at(images: Sequence[Encoded], index: int) -> Encoded | PictureError:
    """Return the bytes or the path of an image, or the error that it lies outside the folder."""
    try:
        return images[index]
    except PictureError as error:
        return error


def _faults(batch: list[Encoded | PictureError], decode: bool) -> list[str | None]:
    """Return what is wrong with each image, or None; without `decode`, look only for missing files."""

    def fault(image: Encoded | PictureError) -> str | None:
        if isinstance(image, PictureError):
            return str(image)
        if isinstance(image, Path) and not files.is_file(image):
            return NOT_FOUND
        try:
            if decode:
                open_picture(image, 64)
        except PictureError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(fault, batch))


def _message(error: Exception, file: str | Path) -> str:
    """Return the message without the place, which the report gives anyway."""
    line = getattr(error, "line", None)
    return str(error).removeprefix(f"{file}: " if line is None else f"{file}:{line}: ")
