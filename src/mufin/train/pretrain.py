"""Module I: Siamese pre-training of E_T, E_V and A_S on mini-batches of labels."""

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
    first_encoder_epoch,
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
    """Pull x̂¹ and ẑ¹ of related pairs together and push unrelated ones apart."""
    per_epoch = context.batches_per_epoch(len(data.used_labels), settings.batch)
    steps = settings.epochs * per_epoch
    if not steps or not any(weight.requires_grad for weight in embedder.parameters()):
        return  # frozen encoders without A_S or a learnt projection
    encoders_from = first_encoder_epoch(settings.epochs, settings.encoder_epochs)
    encoded = data.encoded(embedder) if encoders_from else data
    labels = torch.from_numpy(data.used_labels).to(embedder.device)
    trainer = _Siamese(embedder, encoded, settings, context, steps)
    validated = set(epochs_to_validate(settings.epochs))
    embedder.train()
    with context.progress.task("Module I  ", steps) as task:
        journal = Journal(task, "pretrain", context.logs)
        for epoch in range(settings.epochs):
            if epoch == encoders_from:
                trainer.use(data)
            trainer.refresh(epoch)
            for batch in islice(shuffled(labels, settings.batch, context.generator), per_epoch):
                journal.step(trainer.step(batch))
            if validate and epoch in validated:
                journal.validation(validate())
        journal.close()
    embedder.eval()


class _Siamese:
    """Run the steps of Module I, and keep the embeddings that select hard positives."""

    def __init__(
        self, embedder: Embedder, data: TrainingData, settings: Pretrain, context: Context, steps: int
    ):
        self.embedder, self.settings, self.generator = embedder, settings, context.generator
        self.relevance = Relation.of(data.relevance, embedder.device)
        self.exclude = Relation.of(data.exclude, embedder.device)
        self.by_label = self.positives = self.relevance.transposed()  # all pairs, and those to draw from
        self.temperature = Temperature().to(embedder.device)
        groups = embedder_groups(embedder, settings.lr, settings.encoder_lr)
        if settings.loss == "softmax":
            groups.append({"params": list(self.temperature.parameters()), "weight_decay": 0.0})
        self.loop = Loop(settings, steps, groups)
        self.last_embeddings: tuple[Tensor, Tensor] | None = None
        self.use(data)

    def use(self, data: TrainingData) -> None:
        """Switch to the features of `data`."""
        device, self.data = self.embedder.device, data
        self.points = Loader(data.points, data.groups, device)
        self.labels = Loader(data.labels, data.label_groups, device)

    def refresh(self, epoch: int) -> None:
        """Embed everything again to select hard positives."""
        if self.settings.hard_positives and epoch % self.settings.refresh == 0:
            z = self.embedder.embed(self.data.labels, self.data.label_groups).vectors()
            x = self.embedder.embed(self.data.points, self.data.groups).vectors()
            self.last_embeddings = z, x
            self.positives = hard_pairs(self.by_label, z, x, self.settings.hard_similarity)

    def step(self, labels: Tensor) -> Tensor:
        """Train on these labels (B,) and return the loss."""
        drawn = self.positives.draw_per_row(labels, self.settings.positives, self.generator)  # P_l (B, |P|)
        place, slot = (drawn >= 0).nonzero(as_tuple=True)
        if not len(place):  # all positives of these labels are too easy
            return torch.zeros(())
        pairs = labels[place], drawn[place, slot]
        with autocast(self.embedder.device):
            loss = self._margin(*pairs) if self.settings.loss == "margin" else self._softmax(labels, pairs[1])
        self.loop.step(loss)
        return loss

    def _vectors(self, labels: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return ẑ (B, D) and x̂ (X, D) of the batch."""
        return (
            self.embedder(self.labels.batch(labels)).vector(),
            self.embedder(self.points.batch(points)).vector(),
        )

    def _margin(self, pair_label: Tensor, pair_point: Tensor) -> Tensor:
        """Return the margin loss of the drawn pairs against other datapoints of the batch."""
        labels, row = pair_label.unique(return_inverse=True)
        points, column = pair_point.unique(return_inverse=True)
        z, x = self._vectors(labels, points)
        similarity = z.float() @ x.float().T  # (B, X)
        positive = torch.zeros(similarity.shape, dtype=torch.bool, device=z.device)
        positive[row, column] = True
        related = self.relevance.membership(points, labels) | self.exclude.membership(points, labels)
        unrelated = ~related.T
        hardness = similarity
        if not self.settings.hard_negatives:  # an ablation: random negatives
            hardness = torch.rand(similarity.shape, generator=self.generator, device=z.device)
        if self.settings.guard is not None:
            unrelated &= similarity < self.settings.guard
        negative = hardest(hardness, unrelated, self.settings.negatives)
        if self.settings.margin != "dynamic":
            return margin_loss(similarity, positive, negative, self.settings.margin)
        earlier = similarity.detach()
        if self.last_embeddings is not None:
            earlier = self.last_embeddings[0][labels] @ self.last_embeddings[1][points].T
        return margin_loss(similarity, positive, negative, 0.0, earlier)

    def _softmax(self, labels: Tensor, points: Tensor) -> Tensor:
        """Return the softmax loss, datapoint → label, over the batch's labels and sampled ones."""
        labels = shared_labels(len(self.by_label), labels, self.settings.sampled, self.generator)
        points = points.unique()
        z, x = self._vectors(labels, points)
        positive = self.relevance.membership(points, labels)
        ignored = self.exclude.membership(points, labels)
        similarity = x.float() @ z.float().T
        if self.settings.guard is not None:
            ignored = ignored | (~positive & (similarity >= self.settings.guard))
        return decoupled_softmax(self.temperature(similarity), positive, ignored)
