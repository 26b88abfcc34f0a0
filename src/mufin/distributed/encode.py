"""Fill the feature cache by the workers of a Ray cluster, before a training that reads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.ragged import Ints
from mufin.distributed.cluster import connected, work
from mufin.encode.cache import SHARD_SIZE
from mufin.encode.cache_folder import cache_folder
from mufin.encode.embedder import Embedder
from mufin.errors import UsageError
from mufin.model.store import pick_device
from mufin.progress import Progress
from mufin.signals import signals_of
from mufin.signals.evidence import read

ROWS = SHARD_SIZE // 4  # items per task: with texts and images, about one file of the cache each


@dataclass(frozen=True)
class Task:
    """Rows to encode, of the items or of the labels of a catalogue."""

    labels: bool
    rows: Ints


class Worker:
    """A process that reads the catalogue once, and encodes rows of it into the cache."""

    def __init__(self, folder: Path, config: Config, cache: Path) -> None:
        os.environ["MUFIN_CACHE"] = str(cache)
        self.catalogue = Catalogue.read(folder).only(config.modalities)
        self.embedder = Embedder(config).to(pick_device(config.run.device))
        networks = [signal for signal in signals_of(config) if signal.network is not None]
        self.signals = [signal.to(self.embedder.device) for signal in networks]

    def __call__(self, task: Task) -> int:
        """Encode rows; return how many."""
        items = self.catalogue.labels if task.labels else self.catalogue.items
        read(self.embedder, self.signals, items.take(task.rows))
        return len(task.rows)


def fill_cache(
    folder: Path,
    catalogue: Catalogue,
    config: Config,
    split: str,
    progress: Progress,
    address: str | None = None,
) -> None:
    """Encode all that training on this split reads, as far as it is not in the cache.

    The catalogue is that of the folder, possibly with another split.
    """
    cache = cache_folder().absolute()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache).close()
    except OSError as error:
        raise UsageError(
            f"--ray needs a feature cache, but {cache} cannot be written to ({error.strerror}); "
            "set MUFIN_CACHE to a folder on storage that all machines share"
        ) from None
    tasks = list(_tasks(catalogue, split))
    with connected(address), progress.task("Encoding items", sum(len(one.rows) for one in tasks)) as task:
        for done in work(
            Worker, [folder.absolute(), config, cache], tasks, cache, config.run.device != "cpu"
        ):
            task.advance(done)


def _tasks(catalogue: Catalogue, split: str) -> Iterator[Task]:
    """Divide the items of the split and all labels; labels that are items are encoded as items."""
    items, labels = catalogue.split(split).members, np.zeros(0, np.int64)
    if catalogue.labels_are_items:
        items = np.concatenate([items, catalogue.items.rows(catalogue.labels.ids)])
    else:
        labels = np.arange(len(catalogue.labels), dtype=np.int64)
    for are_labels, rows in ((False, np.unique(items)), (True, labels)):
        for start in range(0, len(rows), ROWS):
            yield Task(are_labels, rows[start : start + ROWS])
