"""Module IV: fine-tune embedder, cross-attention and classifiers on mini-batches of datapoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mufin.config import Config
from mufin.data.relation import Relation
from mufin.encode.bag import Bag
from mufin.encode.features import Loader
from mufin.progress import QUIET
from mufin.retrieve.shortlist import Shortlist
from mufin.train.data import TrainingData
from mufin.train.epochs import Epochs
from mufin.train.loop import CachedBags, Context, Loop, autocast, embedder_groups, first_encoder_epoch
from mufin.train.losses import Temperature, cosine_loss, decoupled_softmax
from mufin.train.retrieve import retrieve
from mufin.train.sampling import ShortlistNegatives, clustered, shared_labels, shuffled
from mufin.train.transfer import Networks
from mufin.train.votes import Votes


def finetune(
    networks: Networks,
    data: TrainingData,
    shortlist: Shortlist,
    config: Config,
    context: Context,
    validate: Callable[[], float] | None = None,
) -> None:
    """Fine-tune all networks to predict the labels of datapoints."""
    settings = config.finetune
    per_epoch = context.batches_per_epoch(len(data.used_points), settings.batch)
    steps = settings.epochs * per_epoch
    if not steps:
        return
    networks.train()
    trainer = Tuner(networks, data, shortlist, config, context.generator, steps)
    Epochs(trainer, settings.epochs, per_epoch, context).run(validate)
    networks.eval()


@dataclass(frozen=True)
class Sample:
    """The datapoints of a step, with S_i and T_i of each, and the labels shared by all."""

    points: Tensor  # (B,)
    own: Tensor  # (B, |S| + |T|) labels, padded with −1
    labels: Tensor  # (U,) ascending: all labels of `own`, and random ones

    def only(self, which: Tensor) -> Sample:
        """Select some datapoints; keep all labels."""
        return Sample(self.points[which], self.own[which], self.labels)


class Tuner:
    """Run the steps of Module IV."""

    name, title = "finetune", "Fine-tuning"

    def __init__(
        self,
        networks: Networks,
        data: TrainingData,
        shortlist: Shortlist,
        config: Config,
        generator: torch.Generator,
        steps: int,
    ) -> None:
        settings = config.finetune
        self.embedder, self.ranker = networks.embedder, networks.ranker
        self.classifiers, self.device = networks.classifiers, networks.device
        self.raw_data = data  # before the encoders; `self.data` may be encoded
        self.config, self.settings, self.generator = config, settings, generator
        self.relevance, self.exclude = (Relation.of(m, self.device) for m in (data.relevance, data.exclude))
        self.encoders_from = first_encoder_epoch(settings.epochs, settings.encoder_epochs)
        self.negatives = ShortlistNegatives(shortlist, self.relevance, self.exclude, settings.guard)
        self.votes: Votes | None = None
        if config.memory.loss:
            self.votes = Votes(self.relevance, self.exclude, config.memory, generator)
        self.temperature = Temperature().to(self.device)
        groups: list[dict[str, Any]] = [{"params": list(self.ranker.parameters())}]
        groups += embedder_groups(self.embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        rows = {"params": self.classifiers.sparse_parameters(), "lr": settings.classifier_lr or settings.lr}
        self.loop = Loop(settings, steps, groups, [rows], data.ranks)
        self.used_points = torch.from_numpy(data.used_points).to(self.device)
        self.modules = {
            "embedder": self.embedder, "ranker": self.ranker,
            "classifiers": self.classifiers, "temperature": self.temperature,
        }  # fmt: skip
        self.use(data)

    def use(self, data: TrainingData) -> None:
        """Switch to the features of `data`."""
        self.data = data
        self.points = Loader(data.points, data.groups, self.device)
        self.labels = Loader(data.labels, data.label_groups, self.device)
        self.owners = data.label_owner.to(self.device), data.point_owner.to(self.device)

    @property
    def kept(self) -> dict[str, Tensor]:
        """T_i is drawn from these shortlists, computed with earlier weights."""
        return {"shortlist": self.negatives.labels}

    def refreshes(self, epoch: int) -> bool:
        return True

    def start(self, epoch: int) -> None:
        """Update the frozen encoder outputs, R_i and the voters."""
        with self.embedder.fast_eval():
            self._start(epoch)

    def _start(self, epoch: int) -> None:
        if epoch < self.encoders_from:
            if self.data is self.raw_data:
                self.use(self.raw_data.encoded(self.embedder))
        elif self.settings.label_encoders:
            if self.data is not self.raw_data:
                self.use(self.raw_data)
        else:
            self.use(replace(self.raw_data, labels=self.embedder.encoded(self.raw_data.labels)))
        if self.settings.refresh and epoch and epoch % self.settings.refresh == 0:
            found = retrieve(self.embedder, self.data, self.config.retrieve, QUIET)
            self.negatives = ShortlistNegatives(found, self.relevance, self.exclude, self.settings.guard)
        if self.votes is not None:
            self.votes.refresh(self.embedder, self.data)

    def batches(self) -> tuple[Tensor, ...]:
        """Split all datapoints into the batches of an epoch."""
        points = self.used_points
        if self.settings.batches == "random":
            return shuffled(points, self.settings.batch, self.generator)
        x = self.data.embed_points(self.embedder, points.cpu().numpy()).vectors()
        return clustered(points, x, self.settings.batch, self.generator)

    def sample(self, points: Tensor) -> Sample:
        """Draw S_i and T_i, and the labels that all datapoints of the batch share."""
        settings, generator = self.settings, self.generator
        positives = self.relevance.draw_per_row(points, settings.positives, generator)  # (B, |S|)
        negatives = self.negatives.draw(points, settings.negatives, generator)  # (B, |T|)
        own = torch.cat([positives, negatives], dim=1)
        return Sample(points, own, shared_labels(self.data.n_labels, own, settings.sampled, generator))

    def step(self, points: Tensor) -> Tensor:
        """Train on these datapoints (B,) and return the loss; each rank adds that of its own."""
        ranks, (of_labels, of_points) = self.data.ranks, self.owners
        sample, of_sample = self.sample(points), of_points[points]
        own = sample.only(ranks.owns(of_sample)) if ranks.size > 1 else sample
        of_labels = of_labels[sample.labels]
        labels = sample.labels[ranks.owns(of_labels)] if ranks.size > 1 else sample.labels
        cached: list[CachedBags] = []
        with autocast(self.device):
            if self.settings.chunk:
                embeds = ((self._points, own.points), (self._labels, labels))
                cached = [CachedBags(embed, rows, self.settings.chunk) for embed, rows in embeds]
                x, z = (bags.bag for bags in cached)
            else:
                x, z = self._points(own.points), self._labels(labels)
            z = ranks.gather_bag(z, of_labels)
            w = self.classifiers.weight(sample.labels, z.vector())  # (U, D)
            loss = self._loss(own, x, z, w)
            if self.votes is not None:
                loss = loss + self.config.memory.loss * self.votes.loss(own.points, x.vector())
        return self.loop.step(loss * (len(own.points) / len(points)), cached)

    def _points(self, points: Tensor) -> Bag:
        bag: Bag = self.embedder(self.points.batch(points))
        return bag

    def _labels(self, labels: Tensor) -> Bag:
        bag: Bag = self.embedder(self.labels.batch(labels))
        return bag

    def _loss(self, sample: Sample, x: Bag, z: Bag, w: Tensor) -> Tensor:
        if self.settings.loss == "cosine":
            return self._own_loss(sample, x, z, w)
        loss = self._shared_loss(sample, x, w)
        return loss + self._own_loss(sample, x, z, w) if self.ranker.adapts else loss

    def _own_loss(self, sample: Sample, x: Bag, z: Bag, w: Tensor) -> Tensor:
        """Adapt each datapoint to its own S_i ∪ T_i; return the paper's loss, or a softmax over them."""
        at = torch.searchsorted(sample.labels, torch.maximum(sample.own, sample.labels[0]))  # (B, k)
        score = self.ranker(x, z.map(lambda tensor: tensor[at]), w[at]).float()
        present = sample.own >= 0
        positive = present.clone()
        positive[:, self.settings.positives :] = False
        if self.settings.loss == "cosine":
            return cosine_loss(score, positive, present & ~positive, self.settings.margin)
        return decoupled_softmax(self.temperature(score), positive, ~present)

    def _shared_loss(self, sample: Sample, x: Bag, w: Tensor) -> Tensor:
        """Return the softmax loss of ⟨x̂¹, w_l⟩ over the labels of the whole batch and the sampled ones."""
        positive = self.relevance.membership(sample.points, sample.labels)
        ignored = self.exclude.membership(sample.points, sample.labels)
        return decoupled_softmax(self.temperature(x.vector().float() @ w.float().T), positive, ignored)
