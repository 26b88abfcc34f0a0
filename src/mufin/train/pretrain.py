"""Module I: E_T, E_V and A_S trained in Siamese fashion over mini-batches of labels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor

from mufin.data.relation import Relation
from mufin.encode.embedder import Embedder
from mufin.encode.features import Loader
from mufin.settings import Pretrain
from mufin.train.data import TrainingData
from mufin.train.loop import (
    Context,
    Journal,
    Loop,
    autocast,
    embedder_groups,
    epochs_to_validate,
    first_trained,
)  # fmt: skip
from mufin.train.losses import Temperature, decoupled_softmax, hardest, margin_loss
from mufin.train.sampling import hard_pairs, shared_labels, shuffled


def pretrain(
    embedder: Embedder,
    data: TrainingData,
    settings: Pretrain,
    context: Context,
    validate: Callable[[], float] | None = None,
) -> None:
    """Bring x̂¹ and ẑ¹ of related pairs together and push unrelated ones apart."""
    each = context.epoch(len(data.used_labels), settings.batch)
    steps = settings.epochs * each
    if not steps or not any(weight.requires_grad for weight in embedder.parameters()):
        return  # nothing to train: frozen encoders without A_S or a learnt projection
    trained_from = first_trained(settings.epochs, settings.encoder_epochs)
    still = data.encoded(embedder) if trained_from else data
    labels = torch.from_numpy(data.used_labels).to(embedder.device)
    trainer = _Siamese(embedder, still, settings, context, steps)
    validated = set(epochs_to_validate(settings.epochs))
    embedder.train()
    with context.progress.task("Module I  ", steps) as task:
        journal = Journal(task, "pretrain", context.logs)
        for epoch in range(settings.epochs):
            if epoch == trained_from:
                trainer.use(data)
            trainer.refresh(epoch)
            for batch in islice(shuffled(labels, settings.batch, context.generator), each):
                journal.step(trainer.step(batch))
            if validate and epoch in validated:
                journal.validation(validate())
        journal.close()
    embedder.eval()


class _Siamese:
    """One step of Module I, and the embeddings that say which positives are hard."""

    def __init__(
        self, embedder: Embedder, data: TrainingData, settings: Pretrain, context: Context, steps: int
    ):
        self.embedder, self.settings, self.generator = embedder, settings, context.generator
        self.relevance = Relation.of(data.relevance, embedder.device)
        self.exclude = Relation.of(data.exclude, embedder.device)
        self.by_label = self.positives = self.relevance.transposed()  # all pairs, and those that are drawn
        self.temperature = Temperature().to(embedder.device)
        groups = embedder_groups(embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        self.loop = Loop(settings, steps, groups)
        self.judged: tuple[Tensor, Tensor] | None = None
        self.use(data)

    def use(self, data: TrainingData) -> None:
        """Read these features from now on."""
        device, self.data = self.embedder.device, data
        self.points = Loader(data.points, data.groups, device)
        self.labels = Loader(data.labels, data.label_groups, device)

    def refresh(self, epoch: int) -> None:
        """Embed everything anew: hard positives are judged by these embeddings."""
        if self.settings.hard_positives and epoch % self.settings.refresh == 0:
            z = self.embedder.embed(self.data.labels, self.data.label_groups).vectors()
            x = self.embedder.embed(self.data.points, self.data.groups).vectors()
            self.judged = z, x
            self.positives = hard_pairs(self.by_label, z, x, self.settings.hard_similarity)

    def step(self, labels: Tensor) -> Tensor:
        drawn = self.positives.draw_per_row(labels, self.settings.positives, self.generator)  # P_l (B, |P|)
        place, slot = (drawn >= 0).nonzero(as_tuple=True)
        if not len(place):  # every positive is too easy: nothing to learn from these labels
            return torch.zeros(())
        pairs = labels[place], drawn[place, slot]
        with autocast(self.embedder.device):
            loss = self._margin(*pairs) if self.settings.loss == "margin" else self._softmax(labels, pairs[1])
        self.loop.step(loss)
        return loss

    def _vectors(self, labels: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """ẑ (B, D) and x̂ (X, D) of the batch."""
        return (
            self.embedder(self.labels.batch(labels)).vector(),
            self.embedder(self.points.batch(points)).vector(),
        )

    def _margin(self, pair_label: Tensor, pair_point: Tensor) -> Tensor:
        """The drawn pairs against the other datapoints of the batch."""
        labels, row = pair_label.unique(return_inverse=True)
        points, column = pair_point.unique(return_inverse=True)
        z, x = self._vectors(labels, points)
        similarity = z.float() @ x.float().T  # (B, X)
        positive = torch.zeros(similarity.shape, dtype=torch.bool, device=z.device)
        positive[row, column] = True
        related = self.relevance.membership(points, labels) | self.exclude.membership(points, labels)
        unrelated = ~related.T
        # "Random" negatives (an ablation) are the hardest by random numbers.
        by = similarity
        if not self.settings.hard_negatives:
            by = torch.rand(similarity.shape, generator=self.generator, device=z.device)
        if self.settings.guard is not None:
            unrelated &= similarity < self.settings.guard
        negative = hardest(by, unrelated, self.settings.negatives)
        if self.settings.margin != "dynamic":
            return margin_loss(similarity, positive, negative, self.settings.margin)
        earlier = similarity.detach()
        if self.judged is not None:
            earlier = self.judged[0][labels] @ self.judged[1][points].T
        return margin_loss(similarity, positive, negative, 0.0, earlier)

    def _softmax(self, labels: Tensor, points: Tensor) -> Tensor:
        """Datapoint → label over the batch's labels and some sampled ones."""
        labels = shared_labels(len(self.by_label), labels, self.settings.sampled, self.generator)
        points = points.unique()
        z, x = self._vectors(labels, points)
        positive = self.relevance.membership(points, labels)
        ignored = self.exclude.membership(points, labels)
        similarity = x.float() @ z.float().T
        if self.settings.guard is not None:
            ignored = ignored | (~positive & (similarity >= self.settings.guard))
        return decoupled_softmax(self.temperature(similarity), positive, ignored)
