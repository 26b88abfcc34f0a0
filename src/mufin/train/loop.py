"""What Modules I and IV share: optimizers, the learning-rate curve, mixed precision, the journal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from mufin.config import Finetune, Pretrain
from mufin.encode.embedder import Embedder
from mufin.errors import UsageError
from mufin.progress import Task
from mufin.train.caching import CachedBags


class Loop:
    """Steps of AdamW for dense weights and of lazy row-wise Adam for sparse ones, under one-cycle cosine.

    lr(t) rises linearly over the warm-up, then falls as a cosine to zero. Rows of a sparse weight that are
    not in a batch neither move nor decay.
    """

    def __init__(
        self,
        settings: Pretrain | Finetune,
        steps: int,
        dense: list[dict[str, Any]],
        sparse: list[dict[str, Any]] | None = None,
    ) -> None:
        # Groups are empty where everything is frozen; with classifiers alone to train, all of them are.
        groups = [group for group in dense if group["params"]]
        self.optimizers: list[Optimizer] = []
        if groups:
            self.optimizers.append(
                torch.optim.AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
            )
        if sparse and any(group["params"] for group in sparse):
            self.optimizers.append(torch.optim.SparseAdam(sparse))
        self.dense = [p for group in groups for p in group["params"]]
        self.schedules = [one_cycle(optimizer, steps, settings.warmup) for optimizer in self.optimizers]

    def step(self, loss: Tensor, cached: Sequence[CachedBags] = ()) -> None:
        if not loss.requires_grad:  # settings that leave nothing to train
            return
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for bags in cached:
            bags.send()
        nn.utils.clip_grad_norm_(self.dense, 1.0)
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()


def one_cycle(optimizer: Optimizer, steps: int, warmup: int) -> LRScheduler:
    """The learning rate rises linearly in `warmup` steps (at most a fifth of all), then falls as a cosine."""
    rise = min(warmup, steps // 5)
    up = LinearLR(optimizer, start_factor=1 / (rise + 1), total_iters=rise)
    down = CosineAnnealingLR(optimizer, T_max=max(1, steps - rise))
    return SequentialLR(optimizer, [up, down], milestones=[rise])


def embedder_groups(embedder: Embedder, lr: float, encoder_lr: float | None) -> list[dict[str, Any]]:
    """Parameter groups: the encoders' own layers, and the projections and attention on top."""
    encoders = embedder.encoder_parameters()
    own = {id(p) for p in encoders}
    rest = [p for p in embedder.parameters() if p.requires_grad and id(p) not in own]
    return [{"params": encoders, "lr": encoder_lr or lr}, {"params": rest, "lr": lr}]


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bf16 on GPUs; f32 on CPUs, where the text encoder sees to itself and the rest gains nothing."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def first_trained(epochs: int, encoder_epochs: int | Literal["all"]) -> int:
    """The first epoch that trains the encoders' own layers."""
    return 0 if encoder_epochs == "all" else max(0, epochs - encoder_epochs)


class Journal:
    """Shows loss and validation P@1 beside the bar, and writes them for TensorBoard when asked."""

    def __init__(self, task: Task, module: str, logs: Path | None) -> None:
        self.task, self.module, self.steps = task, module, 0
        self.mean: float | None = None
        self.writer: Any = None
        if logs is not None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UsageError(
                    'tensorboard is not installed; run: pip install "mufin[tensorboard]"'
                ) from None
            self.writer = SummaryWriter(str(logs))

    def step(self, loss: Tensor) -> None:
        self.steps += 1
        if self.steps % 5 != 1:  # reading a loss makes a GPU wait
            self.task.advance(1)
            return
        value = float(loss.detach())
        self.mean = value if self.mean is None else 0.8 * self.mean + 0.2 * value
        self.task.advance(1, loss=self.mean)
        self._write("loss", value)

    def validation(self, precision: float) -> None:
        self.task.advance(0, **{"P@1": precision})
        self._write("validation P@1", precision)

    def _write(self, name: str, value: float) -> None:
        if self.writer is not None:
            self.writer.add_scalar(f"{self.module}/{name}", value, self.steps)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def epochs_to_validate(epochs: int) -> Iterator[int]:
    """About ten of them, the last always."""
    every = max(1, epochs // 10)
    return (epoch for epoch in range(epochs) if (epoch + 1) % every == 0 or epoch == epochs - 1)
