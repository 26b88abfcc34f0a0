"""fit: train a model on a catalogue, running Modules I–IV in order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.split import Split
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.errors import CatalogueError
from mufin.model.mufin import Mufin
from mufin.model.store import pick_device, save
from mufin.progress import Progress
from mufin.signals import signals_of
from mufin.signals.base import Signal
from mufin.signals.evidence import read_some
from mufin.train.assemble import assemble
from mufin.train.data import TrainingData
from mufin.train.finetune import finetune
from mufin.train.loop import Context, seeded
from mufin.train.pretrain import pretrain
from mufin.train.retrieve import retrieve
from mufin.train.transfer import transfer
from mufin.train.validate import hold_out, precision_at_1


def fit(
    catalogue: Catalogue,
    config: Config | None = None,
    out: Path | str | None = None,
    split: str = "train",
    quiet: bool = False,
) -> Mufin:
    """Train a model on a split of the catalogue; without settings, use the preset `best`.

    With `out`, also save it there. The same seed gives the same model on the same machine.
    """
    config = config or Config.preset("best")
    progress = Progress(quiet)
    points = _checked(catalogue.split(split), split)
    seed_everything(config.seed)
    embedder = Embedder(config).to(pick_device(config.run.device))
    trained_on = catalogue.only(config.modalities).items.take(np.unique(points.members))
    signals = [signal.study(trained_on).to(embedder.device) for signal in signals_of(config)]
    data = training_data(embedder, signals, catalogue, points, config, progress)
    logs = Path(out) / "logs" if out is not None and config.run.tensorboard else None
    context = Context(seeded(config.seed, embedder.device), progress, logs, config.run.batches)

    model = _trained(embedder, signals, data, catalogue, config, context)
    if out is not None:
        save(model, out)
    return model


def _trained(
    embedder: Embedder,
    signals: Sequence[Signal],
    data: TrainingData,
    catalogue: Catalogue,
    config: Config,
    context: Context,
) -> Mufin:
    """Run Modules I to IV and return the model."""
    held_out = hold_out(data, config.run.validation, np.random.default_rng(config.seed))
    used, held = data.take(data.others(held_out)), data.take(held_out)
    validate = partial(precision_at_1, embedder, held) if len(held_out) else None
    pretrain(embedder, used, config.pretrain, context, validate)
    shortlist = retrieve(embedder, used, config.retrieve, context.progress)
    networks = transfer(config, embedder, used)
    validate = partial(precision_at_1, embedder, held, networks) if len(held_out) else None
    finetune(networks, used, shortlist, config, context, validate)

    return assemble(networks, signals, config, catalogue, data, held_out, context.progress)


def seed_everything(seed: int) -> None:
    """Seed torch and Python; sampling uses the generator of the context instead."""
    random.seed(seed)
    torch.manual_seed(seed)


def training_data(
    embedder: Embedder,
    signals: Sequence[Signal],
    catalogue: Catalogue,
    points: Split,
    config: Config,
    progress: Progress,
) -> TrainingData:
    """Compute the features of datapoints and labels, or read them from the cache."""
    catalogue = catalogue.only(config.modalities)
    everything = np.arange(len(catalogue.labels), dtype=np.int64)
    shared = catalogue.labels is catalogue.items
    rows = everything if shared else points.members  # skip items of other splits
    item_features = read_some(embedder, signals, catalogue.items, rows, progress, "Encoding items ")
    label_features = item_features
    if not shared:
        label_features = read_some(
            embedder, signals, catalogue.labels, everything, progress, "Encoding labels"
        )
    embedder.learn_scales(item_features if len(item_features.image.rows) > 1 else label_features)
    groups = Groups(points.offsets, points.members)
    return TrainingData(item_features, groups, label_features, points.relevance, points.exclude)


def _checked(points: Split, name: str) -> Split:
    """Return the split; raise CatalogueError if it has no labels."""
    if not points.relevance.nnz:
        raise CatalogueError(f"split {name!r} has no datapoint with a label: there is nothing to learn from")
    return points
