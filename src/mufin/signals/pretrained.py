"""Pretrained: similarity of title and label under the text encoder before training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.config import Config
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.encode.checkpoints import Layout
from mufin.encode.fast_forms import FastTextEncoder, text_encoder
from mufin.encode.features import Features, first_text, first_text_of
from mufin.encode.rows import DenseRows
from mufin.encode.text import TextEncoder
from mufin.files.tensors import Tensors
from mufin.progress import Task
from mufin.signals.base import Candidates, Column, Known, Query, Signal, Training


@dataclass(frozen=True)
class Pretrained(Signal):
    """t = ⟨E⁰(title), E⁰(label)⟩, where E⁰ is the text encoder before training.

    Fine-tuning makes an encoder forget what the catalogue has no examples of. If the model's text encoder
    is frozen, its outputs are reused; otherwise the signal holds its own copy.
    """

    name = "pretrained"
    description = "similarity of title and label before any training"
    columns = (Column("pretrained similarity", scale=20.0),)

    labels: DenseRows  # (L, H)
    network: TextEncoder | FastTextEncoder | None = None  # E⁰, if the model's encoder is trained

    @classmethod
    def of(cls, config: Config, layout: Layout | None = None) -> Pretrained | None:
        if not config.text.pretrained_similarity:
            return None
        network: TextEncoder | FastTextEncoder | None = None
        early = config.embed.fusion == "early" and config.modalities != "text"
        if config.text.train_layers != 0 or early:  # otherwise reuse the frozen outputs
            frozen = config.text.model_copy(update={"train_layers": 0})
            network = text_encoder(frozen, layout).eval()
        return cls(DenseRows(torch.zeros(0, 0, dtype=torch.float16)), network)

    def read(self, items: Items, features: Features, cached: bool, task: Task) -> DenseRows:
        if self.network is None:
            return DenseRows(torch.from_numpy(first_text(features.text)))
        return DenseRows(torch.from_numpy(first_text_of(items, self.network, cached, task)))

    def score(self, query: Query, candidates: Candidates) -> Tensor:
        rows = candidates.rows
        found = F.embedding(rows.clamp(min=0), self.labels.values).float()  # (B, K, H)
        title = query.reading(self.name).values.float()
        return torch.bmm(found, title[..., None]).masked_fill((rows < 0)[..., None], 0.0)

    def learn(self, training: Training) -> Pretrained:
        values = training.labels.readings[self.name].values.half()
        return replace(self, labels=DenseRows(values.to(training.points.bags.rows.device)))

    def with_labels(self, labels: Query) -> Pretrained:
        return replace(self, labels=self.labels.concat(labels.readings[self.name]))

    def keep(self, labels: Ints, points: Ints) -> Pretrained:
        return replace(self, labels=self.labels.take(labels))

    def to(self, device: torch.device) -> Pretrained:
        network = None if self.network is None else self.network.to(device)
        return Pretrained(self.labels.to(device), network)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "labels", self.labels.values

    def restored(self, tensors: Tensors, known: Known) -> Pretrained:
        shape = len(known.labels.alive), known.embedder.text.width
        values = tensors.get("labels", shape, (torch.float16,))
        return replace(self, labels=DenseRows(values))
