"""Measure on this machine what a training takes per step and per item, on a miniature of its catalogue.

A few real descriptors are encoded; then all stages run for a moment: a few steps, the shortlists, and a model
that is assembled and saved.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.images import thumbnail
from mufin.data.items import Items
from mufin.data.ragged import Ragged
from mufin.data.split import Split
from mufin.encode.cache import FeatureCache, key
from mufin.encode.embedder import Embedder
from mufin.encode.features import Encoder, Features, Groups, extract
from mufin.model.mufin import Mufin
from mufin.model.store import pick_device, save
from mufin.progress import QUIET, Progress, Task
from mufin.retrieve.shortlist import Shortlist
from mufin.runtime.usage import peak_memory, reset_peak_memory
from mufin.signals import signals_of
from mufin.signals.base import Signal
from mufin.train.assemble import Trained, assemble
from mufin.train.data import TrainingData
from mufin.train.finetune import Tuner
from mufin.train.loop import Context, seeded
from mufin.train.miniature import Miniature, Sample, miniature
from mufin.train.plan import Plan, planned
from mufin.train.pretrain import Siamese
from mufin.train.rates import FULL, QUICK, Effort, Encoding, Rates, Sizes, Steps
from mufin.train.retrieve import Embedded, label_index
from mufin.train.transfer import Networks, transfer

KEYED = 4096  # images whose presence in the cache is looked up
GATHERED_PER_SECOND = 1e9  # bytes of features read from the cache
PARTS_OF_PLANNING = 7
FIXED_PARTS = ("network", "layout", "config", "compatibility", "images", "mufin.json", ".mufin")
POINT_PARTS = ("points", "memory", "words", "titles")


def plan(
    catalogue: Catalogue,
    config: Config | None = None,
    split: str = "train",
    progress: Progress = QUIET,
    *,
    quick: bool = False,
) -> Plan:
    """Return the time, memory and disk space that `fit` will take, from a few seconds of measuring.

    What is already in the feature cache is counted. Without settings, plan the preset `best`. `quick`
    measures about half as long: times are rougher.
    """
    config = config or Config.preset("best")
    reset_peak_memory()
    state = torch.get_rng_state()
    points = catalogue.split(split)
    sizes = sizes_of(catalogue, points, config)
    with progress.task("Planning", PARTS_OF_PLANNING) as task:
        rates = _Calibration(catalogue, config, points, task, QUICK if quick else FULL).rates(sizes)
    torch.set_rng_state(state)
    return planned(config, sizes, rates)


def sizes_of(catalogue: Catalogue, points: Split, config: Config) -> Sizes:
    """Count what training reads."""
    frequency = np.bincount(points.relevance.indices, minlength=len(catalogue.labels))
    used = int(np.count_nonzero(np.diff(points.relevance.indptr)))
    shared = catalogue.labels is catalogue.items
    remembered = min(used, int(np.minimum(frequency, config.memory.per_label).sum()))
    items = len(catalogue.items) if shared else len(np.unique(points.members)) + len(catalogue.labels)
    labels = catalogue.only(config.modalities).labels
    descriptors = len(labels.flat_texts()[1]) + len(labels.flat_images()[1])
    return Sizes(
        len(points), len(catalogue.labels), used, int(np.count_nonzero(frequency)),
        remembered * (config.memory.neighbours > 0), points.relevance.nnz, items,
        descriptors / max(1, len(labels)),
    )  # fmt: skip


class _Calibration:
    """Runs all stages for a moment."""

    def __init__(self, catalogue: Catalogue, config: Config, points: Split, task: Task, effort: Effort):
        self.config, self.points, self.task, self.effort = config, points, task, effort
        self.catalogue = catalogue.only(config.modalities)
        self.shared = catalogue.labels is catalogue.items
        self.pictures = catalogue.labels.flat_images() if config.run.pictures else None
        started = time.perf_counter()
        self.device = pick_device(config.run.device)
        self.embedder = Embedder(config).to(self.device)
        read = self.catalogue.items.take(np.unique(points.members))
        self.signals: list[Signal] = [s.study(read).to(self.device) for s in signals_of(config)]
        self.load_seconds = time.perf_counter() - started
        task.advance()
        items = [self.catalogue.items] if self.shared else [read, self.catalogue.labels]
        self.samples: dict[str, Sample] = {}
        with self.embedder.eval_mode():
            self.encodings = {name: self._encoding(name, kind, items) for name, kind in self._encoders()}
        task.advance()

    def _encoders(self) -> list[tuple[str, Encoder]]:
        """Return the encoders of texts and images, and that of titles if a signal has its own."""
        own = [("titles", signal.network) for signal in self.signals if signal.network is not None]
        both = [("texts", self.embedder.text), ("images", self.embedder.vision), *own]
        return [(name, cast(Encoder, encoder)) for name, encoder in both if encoder is not None]

    def _encoding(self, name: str, encoder: Encoder, items: list[Items]) -> Encoding:
        """Encode a few descriptors, and count those that are not in the cache."""
        descriptors = _descriptors(name, items)
        if not len(descriptors):
            self.samples[name] = Sample(Ragged(np.zeros((0, 1), np.float32), np.zeros(1, np.int64)), 1)
            return Encoding(0, 0, 0.0, 0.0, 0.0, 0)
        looked_at = _spread(descriptors, KEYED if name == "images" else len(descriptors))
        started = time.perf_counter()
        keys = np.unique(np.array([key(each) for each in looked_at], np.uint64))
        read = (time.perf_counter() - started) / len(looked_at)
        new = 1 - float(FeatureCache(encoder.fingerprint()).known(keys).mean())
        few = _spread(looked_at, self.effort.sample[name] if new else 16)
        rows = encoder.prepare(few[:8])
        started = time.perf_counter()
        if len(few) > 8:
            rows = encoder.prepare(few[8:])
        seconds = (time.perf_counter() - started) / max(1, len(few) - 8)
        self.samples[name] = Sample(rows, encoder.width)
        count = round(len(descriptors) * len(keys) / len(looked_at))
        row = rows.flat.nbytes / max(1, len(rows))
        return Encoding(count, round(count * new), seconds, read + row / GATHERED_PER_SECOND, row, 0)

    def rates(self, sizes: Sizes) -> Rates:
        """Measure everything."""
        size = sum(each.count * each.row_bytes for each in self.encodings.values())
        networks, per_item = (self.embedder, self.signals), size / max(1, len(self.catalogue.items))
        mini = miniature(self.catalogue, self.points, self.config, networks, self.samples, per_item)
        self.task.advance()
        data, encoded, trains = mini.data, mini.encoded, mini.encoded is not mini.data
        used, few = data.take(data.seen), encoded.take(data.seen)
        frozen, trained_networks = self._steps(used, few, few)
        self.task.advance()
        trained = self._steps(used, used, few)[0] if trains else frozen
        self.task.advance()
        of = _sizes_of(mini, sizes)
        search = self._search(few)
        started = time.perf_counter()
        config = self.config.override(["run.pictures=false"])
        trained_model = Trained.of(trained_networks, encoded, QUIET)
        model = assemble(trained_model, self.signals, config, mini.catalogue)
        assembling = time.perf_counter() - started - of.points * frozen.point - of.labels * frozen.label
        self.task.advance()
        saving, fixed, by_label, by_point = _saved(model)
        point, label = self._encoding_seconds(mini) if trains else (0.0, 0.0)
        thumbnail_seconds, thumbnail_bytes = self._thumbnails()
        weights = [*self.embedder.parameters(), *trained_networks.ranker.parameters()]
        in_memory = {"texts": sum(len(f.text.rows) for f in mini.features)}
        in_memory["images"] = sum(len(f.image.rows) for f in mini.features)
        encodings = {n: replace(each, sampled=in_memory.get(n, 0)) for n, each in self.encodings.items()}
        self.task.advance()
        return Rates(
            of, encodings, self.load_seconds, mini.reading_seconds, frozen, trained, point, label, search,
            max(0.0, assembling), saving, thumbnail_seconds, thumbnail_bytes, trains,
            network_bytes=sum(4 * t.numel() for t in weights if t.requires_grad),
            encoded_bytes=4 * sum(encoder.width for name, encoder in self._encoders() if name != "titles"),
            item_bytes=mini.reading_bytes / max(1, of.items),
            fixed_folder=fixed, label_folder=by_label / of.labels,
            point_folder=by_point / max(1, of.remembered), peak=peak_memory(),
            gpu_peak=torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0,
        )  # fmt: skip

    # -- the stages ------------------------------------------------------------------------------------------

    def _steps(self, used: TrainingData, data: TrainingData, encoded: TrainingData) -> tuple[Steps, Networks]:
        """Time a few steps of Modules I and IV on `data`, and embedding it."""
        config, context = self.config, Context(seeded(0, self.device))
        self.embedder.train()
        first = 0.0
        if config.pretrain.epochs and any(p.requires_grad for p in self.embedder.parameters()):
            siamese = Siamese(self.embedder, used, config.pretrain, context, 1000)
            siamese.use(data)
            first = self._timed(siamese.step, siamese.batches())
        networks = transfer(config, self.embedder, encoded)
        k = min(config.retrieve.shortlist, used.n_labels)
        labels = torch.randint(used.n_labels, (len(used.groups), k), device=self.device)
        shortlist = Shortlist(labels, torch.zeros(labels.shape, device=self.device))
        networks.train()
        tuner = Tuner(networks, used, shortlist, config, context.generator, 1000)
        tuner.use(data if config.finetune.label_encoders else replace(data, labels=encoded.labels))
        if tuner.votes is not None:
            tuner.votes.refresh(self.embedder, encoded)
        second = self._timed(tuner.step, tuner.batches()) if config.finetune.epochs else 0.0
        networks.eval()
        with self.embedder.fast_eval():
            point = self._per_row(data.points, data.groups, data is encoded)
            label = self._per_row(data.labels, data.label_groups, data is encoded)
        return Steps(first, second, point, label), networks

    def _timed(self, step: Callable[[Tensor], Tensor], batches: tuple[Tensor, ...]) -> float:
        """Return the median seconds per step, weighted by how full batches are."""
        full = [batch for batch in batches if len(batch) == len(batches[0])]
        times = []
        for i in range(self.effort.steps + 1):
            started = time.perf_counter()
            step(full[i % len(full)])
            self._wait()
            times.append(time.perf_counter() - started)
        return float(np.median(times[1:]))

    def _per_row(self, features: Features, groups: Groups, fast: bool) -> float:
        """Return the seconds of embedding a row."""
        some = groups.take(np.arange(min(len(groups), 2048 if fast else self.effort.rows), dtype=np.int64))
        self.embedder.embed(features, some.take(np.arange(min(8, len(some)), dtype=np.int64)))
        started = time.perf_counter()
        self.embedder.embed(features, some)
        self._wait()
        return (time.perf_counter() - started) / max(1, len(some))

    def _search(self, data: TrainingData) -> float:
        """Return the seconds of a search per point and label."""
        bags = self.embedder.embed(data.labels, data.label_groups)
        points = self.embedder.embed(data.points, data.groups).vectors()
        started = time.perf_counter()
        index = label_index(Embedded(bags, points), data.relevance, self.config.retrieve)
        some = min(2048, len(points))
        index.search(points[:some], self.config.retrieve.shortlist, data.exclude[:some])
        return (time.perf_counter() - started) / (some * data.n_labels)

    def _encoding_seconds(self, part: Miniature) -> tuple[float, float]:
        """Return the seconds of the trained encoders per point and per label."""
        found = []
        members = len(part.data.groups.members) / max(1, len(part.data.groups))
        for items, per in ((part.catalogue.items, members), (part.catalogue.labels, 1.0)):
            some = items.take(np.arange(min(self.effort.rows, len(items))))
            features = extract(some, part.samples["texts"], part.samples.get("images"), cached=False)
            started = time.perf_counter()
            self.embedder.encoded(features)
            self._wait()
            found.append(per * (time.perf_counter() - started) / max(1, len(some)))
        return found[0], 0.0 if self.shared else found[1]

    def _thumbnails(self) -> tuple[float, float]:
        """Return seconds and bytes of thumbnails per label."""
        if self.pictures is None or not len(self.pictures[1]):
            return 0.0, 0.0
        some = _spread(self.pictures[1], 24)
        started = time.perf_counter()
        made = [thumbnail(each) or b"" for each in some]
        share = np.count_nonzero(np.diff(self.pictures[0])) / (len(self.pictures[0]) - 1) / len(some)
        return (time.perf_counter() - started) * share, sum(map(len, made)) * share

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _sizes_of(part: Miniature, sizes: Sizes) -> Sizes:
    data = part.data
    items = len(part.catalogue.items) + len(part.catalogue.labels) * (data.points is not data.labels)
    return Sizes(
        len(data.groups), data.n_labels, len(data.used_points), len(data.used_labels),
        min(sizes.remembered, len(data.used_points)), data.relevance.nnz, items, sizes.bag,
    )  # fmt: skip


def _spread(descriptors: Sequence[Any], most: int) -> list[Any]:
    """Choose at most so many, evenly spread."""
    n = min(most, len(descriptors))
    return [descriptors[i * len(descriptors) // n] for i in range(n)]


def _descriptors(name: str, items: list[Items]) -> Sequence[Any]:
    """Return the different texts or titles of the items, or all their images."""
    if name == "images":
        found = [each.flat_images()[1] for each in items]
        return [x for each in found for x in each] if len(found) > 1 else found[0]
    arrays = []
    for each in items:
        offsets, texts = each.flat_texts()
        arrays.append(texts.take(offsets[:-1][np.diff(offsets) > 0]) if name == "titles" else texts)
    different: list[str] = pc.unique(pa.concat_arrays(arrays)).to_pylist()
    return different


def _saved(model: Mufin) -> tuple[float, int, int, int]:
    """Save a model for a moment; return the seconds, and bytes that are fixed, of labels and of points."""
    sizes = dict.fromkeys(("fixed", "labels", "points"), 0)
    started = time.perf_counter()
    with suppress(OSError), tempfile.TemporaryDirectory(prefix="mufin-plan-") as folder:
        with suppress(OSError):  # no space: then the training's own save will say so
            save(model, folder)
        for path in Path(folder).rglob("*"):
            name = path.relative_to(folder).as_posix()
            kind = "fixed" if name.startswith(FIXED_PARTS) else "labels"
            kind = "points" if name.startswith(POINT_PARTS) else kind
            sizes[kind] += path.stat().st_size if path.is_file() else 0
    seconds = time.perf_counter() - started
    return seconds, sizes["fixed"], sizes["labels"], sizes["points"]
