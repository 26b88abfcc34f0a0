"""Module I: Siamese pre-training of E_T, E_V and A_S on mini-batches of labels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mufin.data.relation import Relation
from mufin.encode.embedder import Embedder
from mufin.encode.features import Loader
from mufin.settings import Pretrain
from mufin.train.data import TrainingData
from mufin.train.epochs import Epochs
from mufin.train.loop import Context, Loop, autocast, embedder_groups, first_encoder_epoch
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
    if not steps or context.resumes_after("pretrain"):
        return
    if not any(weight.requires_grad for weight in embedder.parameters()):
        return  # frozen encoders without A_S or a learnt projection
    embedder.train()
    trainer = Siamese(embedder, data, settings, context, steps)
    Epochs(trainer, settings.epochs, per_epoch, context).run(validate)
    embedder.eval()


class Siamese:
    """Run the steps of Module I, and keep the embeddings that select hard positives."""

    name, title = "pretrain", "Pre-training"

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
        self.loop = Loop(settings, steps, groups, ranks=data.ranks)
        self.last_embeddings: tuple[Tensor, Tensor] | None = None
        self.modules = {"embedder": embedder, "temperature": self.temperature}
        self.kept: dict[str, Tensor] = {}
        self.encoders_from = first_encoder_epoch(settings.epochs, settings.encoder_epochs)
        self.raw_data = data  # before the encoders; `self.data` may be encoded
        self.use(data)

    def use(self, data: TrainingData) -> None:
        """Switch to the features of `data`."""
        device, self.data = self.embedder.device, data
        self.points = Loader(data.points, data.groups, device)
        self.labels = Loader(data.labels, data.label_groups, device)
        self.owners = data.label_owner.to(device), data.point_owner.to(device)

    def refreshes(self, epoch: int) -> bool:
        return self.settings.hard_positives and epoch % self.settings.refresh == 0

    def start(self, epoch: int) -> None:
        """Encode everything once while the encoders are frozen; embed it again to select hard positives."""
        frozen = epoch < self.encoders_from
        if frozen and self.data is self.raw_data:
            self.use(self.raw_data.encoded(self.embedder))
        elif not frozen and self.data is not self.raw_data:
            self.use(self.raw_data)
        if self.refreshes(epoch):
            z = self.data.embed_labels(self.embedder).vectors()
            x = self.data.embed_points(self.embedder).vectors()
            self.last_embeddings = z, x
            self.positives = hard_pairs(self.by_label, z, x, self.settings.hard_similarity)

    def batches(self) -> tuple[Tensor, ...]:
        """Split all labels with a datapoint into random batches."""
        labels = torch.from_numpy(self.raw_data.used_labels).to(self.embedder.device)
        return shuffled(labels, self.settings.batch, self.generator)

    def step(self, labels: Tensor) -> Tensor:
        """Train on these labels (B,) and return the loss."""
        drawn = self.positives.draw_per_row(labels, self.settings.positives, self.generator)  # P_l (B, |P|)
        place, slot = (drawn >= 0).nonzero(as_tuple=True)
        if not len(place):  # all positives of these labels are too easy
            return torch.zeros(())
        pairs = labels[place], drawn[place, slot]
        with autocast(self.embedder.device):
            loss = self._margin(*pairs) if self.settings.loss == "margin" else self._softmax(labels, pairs[1])
        return self.loop.step(loss / self.data.ranks.size)  # each rank has the loss of the whole batch

    def _vectors(self, labels: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return ẑ (B, D) and x̂ (X, D) of the batch."""
        (of_labels, of_points), share = self.owners, self.data.ranks.share
        z = share(lambda rows: self.embedder(self.labels.batch(rows)), labels, of_labels[labels])
        x = share(lambda rows: self.embedder(self.points.batch(rows)), points, of_points[points])
        return z.vector(), x.vector()

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
