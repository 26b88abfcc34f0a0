"""Training code shared by Modules I and IV: random state, optimizers, schedule, gradient caching, log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from mufin.data.ragged import CPU
from mufin.encode.bag import Bag, joined
from mufin.encode.embedder import Embedder
from mufin.errors import UsageError
from mufin.progress import Progress, Task
from mufin.settings import Finetune, Pretrain


def seeded(seed: int, device: torch.device = CPU) -> torch.Generator:
    """Create a seeded random number generator on a device."""
    return torch.Generator(device).manual_seed(seed)


@dataclass
class Context:
    """Random state, progress and limits of a run; dropout uses torch's global generator instead."""

    generator: torch.Generator = field(default_factory=lambda: seeded(0))
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    logs: Path | None = None  # a folder for TensorBoard
    batches: int | None = None  # maximum per epoch

    def batches_per_epoch(self, n: int, batch: int) -> int:
        """Return the number of batches in an epoch over n examples."""
        return min(-(-n // batch), self.batches or n)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of all random number generators."""
        return {"generator": self.generator.get_state(), **torch_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state returned by `state_dict`."""
        self.generator.set_state(state["generator"])
        set_torch_state(state)


def torch_state() -> dict[str, Tensor]:
    """Return the state of torch's global generators on the CPU and on each GPU."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), **{f"cuda:{i}": state for i, state in enumerate(gpus)}}


def set_torch_state(state: Mapping[str, Tensor]) -> None:
    """Restore the state of torch's global generators."""
    torch.set_rng_state(state["cpu"])
    for name, generator_state in state.items():
        if name.startswith("cuda:"):
            torch.cuda.set_rng_state(generator_state, name)


Embed = Callable[[Tensor], Bag]


class CachedBags:
    """Bags computed without a graph; `backward` recomputes them in chunks to backpropagate their gradients.

    Only one chunk's activations are in memory at a time. Dropout uses the same random numbers both times.
    """

    def __init__(self, embed: Embed, rows: Tensor, chunk: int) -> None:
        self.embed = embed
        self.chunks = rows.tensor_split(max(1, -(-len(rows) // chunk)))
        self.states: list[dict[str, Tensor]] = []
        bags = []
        with torch.no_grad():
            for part in self.chunks:
                self.states.append(torch_state())
                bags.append(embed(part))
        width = max(bag.mask.shape[1] for bag in bags)
        missing = [width - bag.mask.shape[1] for bag in bags]
        values = [F.pad(bag.values, (0, 0, 0, more)) for bag, more in zip(bags, missing, strict=True)]
        masks = [F.pad(bag.mask, (0, more)) for bag, more in zip(bags, missing, strict=True)]
        self.bag = Bag(torch.cat(values), torch.cat(masks), joined([bag.whole for bag in bags]))
        for tensor in _outputs(self.bag):
            tensor.requires_grad_()

    def backward(self) -> None:
        """Propagate the gradients of the bags to the weights; call after `backward` of the loss."""
        after = torch_state()
        sizes = [len(part) for part in self.chunks]
        split = [_gradient_or_zero(tensor).split(sizes) for tensor in _outputs(self.bag)]
        for part, state, *gradients in zip(self.chunks, self.states, *split, strict=True):
            set_torch_state(state)
            recomputed = zip(_outputs(self.embed(part)), gradients, strict=True)
            pairs = [(tensor, gradient) for tensor, gradient in recomputed if tensor.requires_grad]
            torch.autograd.backward(
                [tensor for tensor, _ in pairs],
                [gradient[:, : tensor.shape[1]] for tensor, gradient in pairs],  # without the padding
            )
        set_torch_state(after)


def _outputs(bag: Bag) -> list[Tensor]:
    """Return the tensors that gradients flow through: the rows, and the vector if computed separately."""
    return [bag.values] if bag.whole is None else [bag.values, bag.whole]


def _gradient_or_zero(tensor: Tensor) -> Tensor:
    """Return the gradient, or zeros if the loss does not depend on the tensor."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


class Loop:
    """AdamW for dense weights and lazy row-wise Adam for sparse ones, on a one-cycle cosine schedule.

    lr(t) rises linearly during the warm-up, then follows a cosine to zero. Rows of a sparse weight that are
    not in the batch are neither updated nor decayed.
    """

    def __init__(
        self,
        settings: Pretrain | Finetune,
        steps: int,
        dense: list[dict[str, Any]],
        sparse: list[dict[str, Any]] | None = None,
    ) -> None:
        # A frozen network has an empty group. If all groups are empty, only the classifiers are trained.
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
        """Backpropagate the loss and update all weights."""
        if not loss.requires_grad:  # everything is frozen
            return
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for bags in cached:
            bags.backward()
        nn.utils.clip_grad_norm_(self.dense, 1.0)
        for optimizer, schedule in zip(self.optimizers, self.schedules, strict=True):
            optimizer.step()
            schedule.step()


def one_cycle(optimizer: Optimizer, steps: int, warmup: int) -> LRScheduler:
    """Raise the learning rate linearly for `warmup` steps (at most a fifth), then decay it as a cosine."""
    rise = min(warmup, steps // 5)
    up = LinearLR(optimizer, start_factor=1 / (rise + 1), total_iters=rise)
    down = CosineAnnealingLR(optimizer, T_max=max(1, steps - rise))
    return SequentialLR(optimizer, [up, down], milestones=[rise])


def embedder_groups(embedder: Embedder, lr: float, encoder_lr: float | None) -> list[dict[str, Any]]:
    """Return two parameter groups: the encoders' layers, and the projections and attention on top."""
    encoders = embedder.encoder_parameters()
    own = {id(p) for p in encoders}
    rest = [p for p in embedder.parameters() if p.requires_grad and id(p) not in own]
    return [{"params": encoders, "lr": encoder_lr or lr}, {"params": rest, "lr": lr}]


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Use bf16 on GPUs; on CPUs only the text encoder would gain, and it chooses its own dtype."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def first_encoder_epoch(epochs: int, encoder_epochs: int | Literal["all"]) -> int:
    """Return the first epoch that trains the encoders' layers."""
    return 0 if encoder_epochs == "all" else max(0, epochs - encoder_epochs)


class Journal:
    """Show loss and validation P@1 next to the progress bar; optionally log them to TensorBoard."""

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
        if self.steps % 5 != 1:  # reading a loss synchronises the GPU
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
    """Return about ten epochs, always including the last."""
    every = max(1, epochs // 10)
    return (epoch for epoch in range(epochs) if (epoch + 1) % every == 0 or epoch == epochs - 1)
