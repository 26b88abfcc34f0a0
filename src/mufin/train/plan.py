"""Plan a training: its time, memory and disk space per stage, from sizes and measured rates.

The rates are measured on this machine by `calibrate`; all arithmetic is here. With N points, L labels and
D dimensions, most terms are rate × count:

    encoding      new descriptors × seconds, plus cached ones × reading time
    pre-training  epochs × (batches × step + what an epoch embeds), plus validations
    shortlists    embedding N + L, searching N queries among the entries of L labels
    fine-tuning   as pre-training; η and its moments take 3 × 4 × L × D bytes
    assembling    embedding N + L, two models, the mixture; thumbnails; saving

Peak memory is what the calibration reached, plus the arrays that grow with the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from mufin.config import Config
from mufin.errors import UsageError
from mufin.progress import roughly
from mufin.runtime.usage import gigabytes
from mufin.settings import Finetune, Pretrain
from mufin.train.epochs import epochs_to_validate
from mufin.train.loop import first_encoder_epoch
from mufin.train.rates import Encoding, Rates, Sizes, Steps
from mufin.train.validate import MAX_HELD_OUT
from mufin.train.votes import MAX_VOTERS

STAGES = ("encoding", "pre-training", "shortlists", "fine-tuning", "assembling")
PAIR_BYTES = 100  # of a relevant pair in all copies of the relation
MODELS = 2  # alive while assembling: the draft that the mixture is fitted on, and the final one


@dataclass(frozen=True)
class Stage:
    """The cost of one stage."""

    name: str
    seconds: float
    memory: int  # peak of the process, bytes
    gpu: int
    disk: int  # bytes it adds


@dataclass(frozen=True, repr=False)
class Plan:
    """The cost of a training: time, memory and disk space, in total and per stage.

    >>> Plan([Stage("encoding", 192.0, 1_140_000_000, 0, 0)], {}, {"model": 240_000_000}, 0.0)
    About 3 min, 1.1 GB of memory, 240 MB on disk
    """

    stages: list[Stage]
    memory_parts: dict[str, int]  # largest arrays, bytes
    disk_parts: dict[str, int]  # cache, checkpoints, model
    cached: float  # share of descriptors in the feature cache

    @property
    def seconds(self) -> float:
        """Total time."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def memory(self) -> int:
        """Peak memory of the process, bytes."""
        return max(stage.memory for stage in self.stages)

    @property
    def gpu(self) -> int:
        """Peak memory of the GPU, bytes."""
        return max(stage.gpu for stage in self.stages)

    @property
    def disk(self) -> int:
        """Largest use of the disk, bytes; checkpoints are removed at the end."""
        return sum(self.disk_parts.values())

    def __repr__(self) -> str:
        gpu = f"{gigabytes(self.gpu)} of GPU memory, " if self.gpu else ""
        space = f"{gigabytes(self.memory)} of memory, {gpu}{gigabytes(self.disk)} on disk"
        return f"About {roughly(self.seconds)}, {space}"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        totals = {"seconds": self.seconds, "memory": self.memory, "gpu": self.gpu, "disk": self.disk}
        return totals | asdict(self)

    def check(self, free_memory: int | None, free_disk: int | None, free_cache: int | None) -> None:
        """Raise UsageError if training cannot fit, naming the setting to change; None is not checked."""
        if free_memory is not None and self.memory > free_memory:
            part = max(self.memory_parts, key=lambda name: self.memory_parts[name])
            raise UsageError(
                f"training needs about {gigabytes(self.memory)} of memory, and {gigabytes(free_memory)} are "
                f"free; most goes to {part} ({gigabytes(self.memory_parts[part])}): {REMEDIES[part]}"
            )
        run = self.disk - self.disk_parts["cache"]
        if free_disk is not None and run > free_disk:
            raise UsageError(
                f"training writes about {gigabytes(run)} to the run folder, and {gigabytes(free_disk)} are "
                "free there; choose a folder on another disk, or a smaller embed.dim"
            )
        cache = self.disk_parts["cache"]
        if free_cache is not None and cache > free_cache:
            raise UsageError(
                f"the features take about {gigabytes(cache)} of the cache, and {gigabytes(free_cache)} are "
                "free there; set MUFIN_CACHE to a folder on another disk, or a smaller vision.size"
            )


REMEDIES = {
    "features": "lower vision.size, set vision.stages=false, or vision.train_layers=0",
    "labels": "lower embed.dim",
    "optimizer": "lower embed.dim, or set rank.alpha=one",
    "shortlists": "lower retrieve.shortlist",
    "training steps": "lower finetune.batch and pretrain.batch, or set finetune.chunk=64",
}


def planned(config: Config, sizes: Sizes, rates: Rates) -> Plan:
    """Return the plan of a training on a catalogue of these sizes."""
    seconds, memory = _seconds(config, sizes, rates), _memory(config, sizes, rates.encodings, rates)
    sampled = {name: _sampled(each) for name, each in rates.encodings.items()}
    calibrated = _memory(config, rates.measured_on, sampled, rates)
    base = rates.peak - max(sum(parts.values()) for parts in calibrated.values())
    disk = _disk(config, sizes, rates)
    gpu = rates.gpu_peak and rates.gpu_peak + _gpu(config, sizes) - _gpu(config, rates.measured_on)
    added = {"encoding": disk["cache"], "pre-training": disk["checkpoints"], "assembling": disk["model"]}
    peaks = {name: int(base + sum(memory[name].values())) for name in STAGES}
    stages = [Stage(name, seconds[name], peaks[name], gpu, added.get(name, 0)) for name in STAGES]
    largest = {part: max(parts.get(part, 0) for parts in memory.values()) for part in REMEDIES}
    largest["training steps"] = int(base)
    counts = rates.encodings.values()
    cached = 1 - sum(each.new for each in counts) / max(1, sum(each.count for each in counts))
    return Plan(stages, {part: int(size) for part, size in largest.items()}, disk, cached)


# -- time ----------------------------------------------------------------------------------------------------


def _seconds(config: Config, sizes: Sizes, rates: Rates) -> dict[str, float]:
    """Return the time of each stage."""
    counts = rates.encodings.values()
    encoding = sum(each.new * each.seconds + each.count * each.read_seconds for each in counts)
    steps = rates.trained if rates.trains_encoders else rates.frozen
    everything, encode = _embed(sizes, steps), _encode(sizes, rates)
    search = rates.search * sizes.points * sizes.labels
    ratio = (sizes.points + sizes.labels) / max(1, rates.measured_on.points + rates.measured_on.labels)
    at_end = everything if not rates.trains_encoders else encode + _embed(sizes, rates.frozen)
    return {
        "encoding": rates.load_seconds + encoding + sizes.items * rates.read_item,
        "pre-training": _pretrain_seconds(config, sizes, rates),
        "shortlists": everything + search,
        "fine-tuning": _finetune_seconds(config, sizes, rates),
        "assembling": at_end + ratio * (rates.assemble + rates.save) + sizes.labels * rates.thumbnail,
    }


def _embed(sizes: Sizes, steps: Steps) -> float:
    return sizes.points * steps.point + sizes.labels * steps.label


def _encode(sizes: Sizes, rates: Rates) -> float:
    return sizes.points * rates.encode_point + sizes.labels * rates.encode_label


def _batches(config: Config, n: int, batch: int) -> int:
    return min(-(-n // batch), config.run.batches or n)


def _pretrain_seconds(config: Config, sizes: Sizes, rates: Rates) -> float:
    """Return the time of Module I."""
    own = config.pretrain
    batches = _batches(config, sizes.used_labels, own.batch)

    def seconds(epoch: int, steps: Steps, trained: bool) -> float:
        refreshes = own.hard_positives and epoch % own.refresh == 0
        return batches * steps.pretrain + refreshes * _embed(sizes, steps)

    return _epochs(config, own, sizes, rates, seconds)


def _finetune_seconds(config: Config, sizes: Sizes, rates: Rates) -> float:
    """Return the time of Module IV."""
    own = config.finetune
    batches = _batches(config, sizes.used_points, own.batch)

    def seconds(epoch: int, steps: Steps, trained: bool) -> float:
        total = batches * steps.finetune
        if trained and not own.label_encoders:
            total += sizes.labels * rates.encode_label
        if config.memory.loss:
            total += min(sizes.points, MAX_VOTERS) * steps.point
        if own.batches == "clustered":
            total += sizes.points * steps.point
        if own.refresh and epoch and epoch % own.refresh == 0:
            total += _embed(sizes, steps) + rates.search * sizes.points * sizes.labels
        return total

    return _epochs(config, own, sizes, rates, seconds)


def _epochs(
    config: Config,
    own: Pretrain | Finetune,
    sizes: Sizes,
    rates: Rates,
    seconds: Callable[[int, Steps, bool], float],
) -> float:
    """Return the time of a module whose epochs take `seconds(epoch, steps, whether encoders are trained)`."""
    first = first_encoder_epoch(own.epochs, own.encoder_epochs) if rates.trains_encoders else own.epochs
    total = _encode(sizes, rates) * (rates.trains_encoders and first > 0 and own.epochs > 0)
    held = min(MAX_HELD_OUT, int(config.run.validation * sizes.used_points))
    validated = set(epochs_to_validate(own.epochs)) if held else set()
    now = rates.trained if rates.trains_encoders else rates.frozen  # validation runs the encoders
    for epoch in range(own.epochs):
        total += seconds(epoch, rates.frozen if epoch < first else rates.trained, epoch >= first)
        total += (held * now.point + sizes.labels * now.label) * (epoch in validated)
    return total


# -- memory and disk -----------------------------------------------------------------------------------------


def _sampled(each: Encoding) -> Encoding:
    """Return the part of an encoding that was in memory during calibration."""
    return replace(each, count=each.sampled, new=0)


def _memory(
    config: Config, sizes: Sizes, encodings: dict[str, Encoding], rates: Rates
) -> dict[str, dict[str, float]]:
    """Return the bytes of arrays that grow with the catalogue, per stage."""
    width = 4 * config.embed.dim
    features = sum(each.count * each.row_bytes for each in encodings.values())
    features += sizes.items * rates.item_bytes
    pairs = sizes.pairs * PAIR_BYTES
    writing = max((min(each.new, 4096) * each.row_bytes for each in encodings.values()), default=0.0)
    encoded = sizes.items * rates.encoded_bytes * rates.trains_encoders
    vectors = sizes.points * width + sizes.labels * sizes.bag * width
    shortlists = sizes.points * min(config.retrieve.shortlist, sizes.labels)
    eta = sizes.labels * width * (config.rank.alpha == "learnt")
    voters = min(sizes.points, MAX_VOTERS) * (config.memory.loss > 0)
    steps = voters * (width + 4 * 4 * min(config.finetune.batch, sizes.points))
    label = sizes.bag * width * 1.5 + 4.5 * width  # bags f32 and f16; w, ẑ, μ, and entries
    common = {"features": features, "training steps": pairs}
    return {
        "encoding": {"features": features + 2 * writing},
        "pre-training": common | {"labels": vectors * config.pretrain.hard_positives + encoded},
        "shortlists": common | {"labels": vectors * 2, "shortlists": shortlists * 12},
        "fine-tuning": common
        | {"labels": encoded, "optimizer": 3 * eta, "shortlists": shortlists * 12}
        | {"training steps": pairs + steps},
        "assembling": common
        | {"labels": vectors + encoded + MODELS * sizes.labels * label, "optimizer": eta},
    }


def _gpu(config: Config, sizes: Sizes) -> int:
    """Return the bytes on the GPU that grow with the catalogue."""
    eta = sizes.labels * 4 * config.embed.dim * (config.rank.alpha == "learnt")
    return int(3 * eta + sizes.pairs * PAIR_BYTES + sizes.points * 4 * config.embed.dim)


def _disk(config: Config, sizes: Sizes, rates: Rates) -> dict[str, int]:
    """Return the bytes that are written: the cache, the checkpoints while training runs, the model."""
    cache = sum(each.new * each.row_bytes for each in rates.encodings.values())
    eta = sizes.labels * 4 * (config.embed.dim + 1) * (config.rank.alpha == "learnt")
    shortlists = sizes.points * 4 * min(config.retrieve.shortlist, sizes.labels)
    checkpoint = 4 * rates.network_bytes + 3 * eta  # weights, those of the epoch's start, two moments
    model = rates.fixed_folder + sizes.labels * (rates.label_folder + rates.thumbnail_bytes)
    model += sizes.remembered * rates.point_folder
    return {"cache": int(cache), "checkpoints": int(2 * checkpoint + shortlists), "model": int(model)}
