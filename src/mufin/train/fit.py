"""fit: train a model on a catalogue, running Modules I–IV in order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.split import Split
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.errors import CatalogueError, UsageError
from mufin.model.mufin import Mufin
from mufin.model.store import load, pick_device, save
from mufin.progress import Progress, Stages
from mufin.retrieve.collection import check_milvus
from mufin.retrieve.shortlist import Shortlist
from mufin.signals import signals_of
from mufin.signals.base import Signal
from mufin.signals.evidence import read_some
from mufin.train.assemble import Trained, assemble
from mufin.train.checkpoint import (
    OVERWRITE,
    Checkpoints,
    IfExists,
    State,
    claimed,
    differences,
    is_finished,
)
from mufin.train.data import TrainingData, catalogue_hashes, numbered_texts
from mufin.train.epochs import TensorBoard
from mufin.train.finetune import finetune
from mufin.train.loop import Callback, Context, seeded
from mufin.train.plan import STAGES, Plan
from mufin.train.pretrain import pretrain
from mufin.train.ranks import ALONE, Ranks
from mufin.train.retrieve import retrieve
from mufin.train.transfer import Networks, transfer
from mufin.train.validate import hold_out, precision_at_1
from mufin.version import VERSION


def fit(
    catalogue: Catalogue,
    config: Config | str | None = None,
    out: Path | str | None = None,
    split: str = "train",
    quiet: bool = False,
    *,
    if_exists: IfExists = "refuse",
    callbacks: Sequence[Callback] = (),
    plan: Plan | None = None,
) -> Mufin:
    """Train a model on a split of the catalogue, with these settings or a preset by name; `best` if none.

    With `out`, also save it there, and write checkpoints while training. If that folder holds a model or a
    stopped training, `if_exists` says whether to "refuse", to "resume" the training or to "overwrite" it. The
    same seed gives the same model on the same machine, however often training was stopped and resumed.
    Callbacks are called with an `Event` every few steps. With a `plan`, progress shows the time left in all.
    """
    config = config if isinstance(config, Config) else Config.preset(config or "best")
    if out is not None and if_exists == "resume" and is_finished(Path(out)):
        return _finished(Path(out), config, catalogue, split)
    ranks = Ranks.join(config.run.device)
    seconds = {stage.name: stage.seconds for stage in plan.stages} if plan else dict.fromkeys(STAGES, 0.0)
    run = _Run(catalogue, config, split, Stages(seconds, quiet or not ranks.first), list(callbacks), ranks)
    if out is None:
        if ranks.size > 1:
            raise UsageError("several processes need `out`, a folder that all of them can read")
        return run.model(None, if_exists)
    check_milvus(config.retrieve, ranks.size)
    if not ranks.first:
        return run.follow(Path(out), if_exists)
    with claimed(Path(out), config.run.checkpoint, if_exists) as checkpoints:
        if config.run.tensorboard:
            run.callbacks.append(TensorBoard(Path(out) / "logs"))
            run.progress.say(f"Logs: {Path(out) / 'logs'} (show them with: tensorboard --logdir {out})")
        ranks.wait()
        model = run.model(checkpoints, if_exists)
        model.trained_on = checkpoints.identity["catalogue"]
        save(model, out)
        checkpoints.discard()
    ranks.wait()
    return model


def refuse_other_settings(out: Path, config: Config) -> None:
    """Raise UsageError if a stopped training in this folder has other settings; computes nothing."""
    Checkpoints(out, 0).refuse_other(_settings(config))


def _finished(out: Path, config: Config, catalogue: Catalogue, split: str) -> Mufin:
    """Return the model of a finished training; raise UsageError if its settings or data differ."""
    model = load(out, config.run.device, exact=True)
    then, now = _settings(model.config), _settings(config)
    if model.trained_on:
        then["catalogue"] = model.trained_on
        now["catalogue"] = catalogue_hashes(catalogue.only(config.modalities), catalogue.split(split))
    if changes := differences(then, now):
        described = "; ".join(changes[:5])
        raise UsageError(
            f"{out} holds the finished model of another training: {described}. To train again, {OVERWRITE}"
        )
    Checkpoints(out, 0).discard()  # left by a kill
    return model


@dataclass
class _Run:
    """One training: what to train on, and how."""

    catalogue: Catalogue
    config: Config
    split: str
    progress: Stages
    callbacks: list[Callback]
    ranks: Ranks

    def model(self, checkpoints: Checkpoints | None, if_exists: IfExists) -> Mufin:
        """Run Modules I to IV and build the model."""
        trained, signals = self._train(checkpoints, if_exists)
        if self.ranks.size > 1:  # the data of all ranks, which have encoded it
            points = self.catalogue.split(self.split)
            everything = self._data(trained.networks.embedder, signals, points, ALONE)
            trained = replace(trained, data=replace(everything, held_out=trained.data.held_out))
        return assemble(trained, signals, self.config, self.catalogue)

    def follow(self, out: Path, if_exists: IfExists) -> Mufin:
        """Train together with rank 0, which writes the model to `out`."""
        self.ranks.wait()
        self.callbacks.clear()
        self._train(Checkpoints(out, self.config.run.checkpoint), if_exists)
        self.ranks.wait()
        return load(out, self.config.run.device, exact=True)

    def _train(self, checkpoints: Checkpoints | None, if_exists: IfExists) -> tuple[Trained, list[Signal]]:
        """Prepare the data, and run Modules I to IV."""
        config, points = self.config, _checked(self.catalogue.split(self.split), self.split)
        catalogue = self.catalogue.only(config.modalities)
        seed_everything(config.seed + self.ranks.rank)
        self.progress.begin("encoding")
        embedder = Embedder(config).to(pick_device(config.run.device))
        if checkpoints is not None:
            hashes = self.ranks.agree(catalogue_hashes(catalogue, points) if self.ranks.first else {})
            begin = checkpoints.resume if if_exists == "resume" else checkpoints.restart
            begin(_identity(config, embedder, hashes) | {"processes": self.ranks.size})
        trained_on = catalogue.items.take(np.unique(points.members))
        signals = [signal.study(trained_on).to(embedder.device) for signal in signals_of(config)]
        data = self._data(embedder, signals, points, self.ranks)
        self.ranks.copy(embedder)
        generator, settings = seeded(config.seed, embedder.device), config.run
        context = Context(
            generator, self.progress, self.callbacks, settings.batches, settings.patience, checkpoints
        )
        texts = replace(data, points=numbered_texts(catalogue.items))
        held_out = hold_out(texts, settings.validation, np.random.default_rng(config.seed))
        data = replace(data, held_out=held_out)
        networks = self._trained(embedder, data, context)
        self.progress.begin("assembling")
        return Trained.of(networks, data, self.progress), signals

    def _data(
        self, embedder: Embedder, signals: Sequence[Signal], points: Split, ranks: Ranks
    ) -> TrainingData:
        catalogue = self.catalogue.only(self.config.modalities)
        return training_data(embedder, signals, catalogue, points, self.progress, ranks)

    def _trained(self, embedder: Embedder, data: TrainingData, context: Context) -> Networks:
        """Run Modules I to IV and return the networks."""
        config, used, held = self.config, data.take(data.seen), data.take(data.held_out)
        validate = partial(precision_at_1, embedder, held) if len(data.held_out) else None
        self.progress.begin("pre-training")
        pretrain(embedder, used, config.pretrain, context, validate)
        self.progress.begin("shortlists")
        shortlist = _shortlists(embedder, used, config, context)
        networks = transfer(config, embedder, used)
        validate = partial(precision_at_1, embedder, held, networks) if len(data.held_out) else None
        self.progress.begin("fine-tuning")
        finetune(networks, used, shortlist, config, context, validate)
        return networks


def _shortlists(embedder: Embedder, data: TrainingData, config: Config, context: Context) -> Shortlist:
    """Run Module II, or take the shortlists of a stopped training."""
    if context.resumes_after("pretrain") and context.checkpoints and context.checkpoints.saved:
        labels = context.checkpoints.saved.kept["shortlist"]  # those that may be negatives, else −1
        return Shortlist(labels, torch.full((1, 1), -torch.inf).expand(labels.shape))
    return retrieve(embedder, data, config.retrieve, context.progress)


def _settings(config: Config) -> State:
    """Return the settings that must not change between stopping and resuming."""
    return config.model_dump(mode="json", exclude={"run": {"tensorboard", "checkpoint"}})


def _identity(config: Config, embedder: Embedder, hashes: dict[str, str]) -> State:
    """Return all that must be the same when a stopped training is resumed."""
    encoders = {"text": embedder.text.fingerprint()}
    if embedder.vision is not None:
        encoders["image"] = embedder.vision.fingerprint()
    facts = {"mufin": VERSION, "device": embedder.device.type, "encoders": encoders}
    return _settings(config) | facts | {"catalogue": hashes}


def seed_everything(seed: int) -> None:
    """Seed torch and Python; sampling uses the generator of the context instead."""
    random.seed(seed)
    torch.manual_seed(seed)


def training_data(
    embedder: Embedder,
    signals: Sequence[Signal],
    catalogue: Catalogue,
    points: Split,
    progress: Progress,
    ranks: Ranks = ALONE,
) -> TrainingData:
    """Compute the features of datapoints and labels that a rank owns, or read them from the cache.

    A datapoint belongs to the rank of its first item.
    """
    labels = np.arange(ranks.rank, len(catalogue.labels), ranks.size, dtype=np.int64)
    groups, owner = Groups(points.offsets, points.members), points.members[points.offsets[:-1]] % ranks.size
    rows = groups.take(np.flatnonzero(owner == ranks.rank)).members  # skip items of other splits
    shared = catalogue.labels is catalogue.items
    if shared:
        rows = np.concatenate([rows, labels])
    item_features = read_some(embedder, signals, catalogue.items, rows, progress, "Encoding items ")
    label_features = item_features
    if not shared:
        label_features = read_some(embedder, signals, catalogue.labels, labels, progress, "Encoding labels")
    embedder.learn_scales(item_features if len(item_features.image.rows) > 1 else label_features)
    return TrainingData(
        item_features, groups, label_features, points.relevance, points.exclude, ranks=ranks, owner=owner
    )


def _checked(points: Split, name: str) -> Split:
    """Return the split; raise CatalogueError if it has no labels."""
    if not points.relevance.nnz:
        raise CatalogueError(f"split {name!r} has no datapoint with a label: there is nothing to learn from")
    return points
