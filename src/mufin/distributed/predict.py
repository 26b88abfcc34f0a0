"""Predict or embed the rows of Parquet files by the workers of a Ray cluster, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mufin.data.importers.records import Columns
from mufin.distributed.cluster import connected, work
from mufin.distributed.parts import OutputFolder, Part, facts_of, input_files, parts_of
from mufin.errors import CatalogueError
from mufin.files.folder import saved_checksum
from mufin.model.blocks import ITEM_COLUMNS, Source
from mufin.model.bulk import Summary, Wanted, embed_file, predict_file
from mufin.model.store import load
from mufin.progress import QUIET, Progress
from mufin.version import VERSION


@dataclass(frozen=True)
class Job:
    """What to predict: a model, rows, and what to write of them."""

    run: Path
    input: Path
    output: Path
    wanted: Wanted | None  # None: embeddings
    columns: Columns = ITEM_COLUMNS
    device: str = "auto"
    exact: bool = False

    def asked(self, files: Sequence[Path]) -> dict[str, Any]:
        """Return all that results depend on."""
        columns = asdict(self.columns)
        del columns["max_bad_rows"]
        return {
            "mufin": VERSION,
            "results": "embeddings" if self.wanted is None else "predictions",
            "model": saved_checksum(self.run),
            "exact": self.exact,
            "labels": self.wanted and asdict(self.wanted),
            "columns": {name: value if value is None else str(value) for name, value in columns.items()},
            "input": facts_of(files),
        }

    def absolute(self) -> Job:
        """Return the job with paths that are valid in other processes."""
        images = self.columns.images_dir
        columns = replace(self.columns, images_dir=images and images.absolute())
        return replace(self, run=self.run.absolute(), output=self.output.absolute(), columns=columns)


class Worker:
    """A process that loads the model once and writes parts."""

    def __init__(self, job: Job) -> None:
        self.job, self.model = job, load(job.run, job.device, job.exact)

    def __call__(self, part: Part) -> tuple[Part, Summary]:
        """Write the results of a part."""
        job, output = self.job, self.job.output / part.name
        source = Source.of(part.source, self.model, columns=job.columns, span=part.span)
        if job.wanted is None:
            return part, embed_file(self.model, source, output, QUIET)
        return part, predict_file(self.model, source, output, job.wanted, QUIET)


def predict_parts(
    job: Job, progress: Progress, address: str | None = None, overwrite: bool = False
) -> Summary:
    """Write the results of all rows to Parquet files in a folder; go on where the same work was stopped.

    The files are in the order of the rows, and have the columns that `mufin predict` or `mufin embed` write.
    """
    job, files = job.absolute(), input_files(job.input)
    if saved_checksum(job.run) is None:
        load(job.run, job.device)  # raises an error that says what is wrong
    parts = parts_of(files)
    with OutputFolder.opened(job.output, job.asked(files), overwrite) as folder:
        missing = folder.open_parts(parts)
        _check_bad_rows(folder, job.columns)
        if missing:
            with connected(address):
                _write(job, parts, missing, folder, progress)
        return folder.summary()


def _write(
    job: Job, parts: Sequence[Part], missing: Sequence[Part], folder: OutputFolder, progress: Progress
) -> None:
    """Let workers write the missing parts."""
    total, left = (sum(len(part.span.rows) for part in some) for some in (parts, missing))
    name = "Embedding" if job.wanted is None else "Predicting"
    with progress.task(name, total) as task:
        task.advance(total - left)
        for part, summary in work(Worker, [job], missing, job.output, job.device != "cpu"):
            folder.note(part, summary)
            _check_bad_rows(folder, job.columns)
            task.advance(len(part.span.rows))


def _check_bad_rows(folder: OutputFolder, columns: Columns) -> None:
    """Raise an error if the parts have more bad rows than are allowed."""
    found, most = folder.summary().bad_rows, columns.max_bad_rows
    if len(found) > most:
        raise CatalogueError(
            f"{len(found):,} bad rows, expected at most {most:,}; the last: {found[-1]}; "
            "correct them, or allow more with --max-bad-rows N"
        )
