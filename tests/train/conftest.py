"""The parts of a training run, made ready one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from mufin import Catalogue, Config
from mufin.encode.embedder import Embedder
from mufin.progress import Progress
from mufin.retrieve.shortlist import Shortlist
from mufin.signals import signals_of
from mufin.train.data import TrainingData
from mufin.train.finetune import Tuner
from mufin.train.fit import seed_everything, training_data
from mufin.train.loop import Context
from mufin.train.pretrain import Siamese
from mufin.train.retrieve import retrieve
from mufin.train.transfer import Networks, transfer

QUIET = Progress(quiet=True)


@dataclass
class Stage:
    """All that Modules I–IV need, before any of them has run."""

    config: Config
    networks: Networks
    data: TrainingData
    context: Context

    @property
    def embedder(self) -> Embedder:
        return self.networks.embedder

    @property
    def shortlist(self) -> Shortlist:
        return retrieve(self.embedder, self.data, self.config.retrieve, QUIET)


@pytest.fixture
def stage(shop: Catalogue, tiny_config: Config) -> Callable[..., Stage]:
    """`stage("rank.cross=none", catalogue=…)`: the tiny shop with some settings changed."""

    def make(*changes: str, catalogue: Catalogue = shop) -> Stage:
        config = tiny_config.override(changes)
        seed_everything(config.seed)
        embedder = Embedder(config)
        data = training_data(embedder, signals_of(config), catalogue, catalogue.split("train"), QUIET)
        networks = transfer(config, embedder, data)
        return Stage(config, networks, data, Context())

    return make


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The loss of every step."""
    seen: list[float] = []
    for trainer in (Siamese, Tuner):
        monkeypatch.setattr(trainer, "step", _spied(trainer.step, seen))
    return seen


def _spied(step: Callable[[Any, Tensor], Tensor], seen: list[float]) -> Callable[[Any, Tensor], Tensor]:
    def spied(self: Any, batch: Tensor) -> Tensor:
        loss = step(self, batch)
        seen.append(float(loss.detach()))
        return loss

    return spied
