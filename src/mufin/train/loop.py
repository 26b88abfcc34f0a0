"""What Modules I and IV share: random state, optimizers, schedule, gradient caching, journal."""

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
    """A source of random numbers on a device."""
    return torch.Generator(device).manual_seed(seed)


@dataclass
class Context:
    """All random numbers of Modules I and IV come from `generator`, but for dropout: torch's own."""

    generator: torch.Generator = field(default_factory=lambda: seeded(0))
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    logs: Path | None = None  # a folder for TensorBoard
    batches: int | None = None  # of an epoch at most

    def epoch(self, n: int, batch: int) -> int:
        """How many batches an epoch over n has."""
        return min(-(-n // batch), self.batches or n)

    def state_dict(self) -> dict[str, Tensor]:
        """Where all random numbers stand."""
        return {"generator": self.generator.get_state(), **torch_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the random numbers that followed `state_dict`."""
        self.generator.set_state(state["generator"])
        set_torch_state(state)


def torch_state() -> dict[str, Tensor]:
    """Where torch's own random numbers stand, on the CPU and on each GPU."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), **{f"cuda:{i}": state for i, state in enumerate(gpus)}}


def set_torch_state(state: Mapping[str, Tensor]) -> None:
    """Continue where torch's own random numbers stood."""
    torch.set_rng_state(state["cpu"])
    for name, there in state.items():
        if name.startswith("cuda:"):
            torch.cuda.set_rng_state(there, name)


Embed = Callable[[Tensor], Bag]


class CachedBags:
    """Bags computed without a graph; `send` computes them again, chunk by chunk, to pass their gradients on.

    Only one chunk's activations are held at a time. The random numbers of dropout are the same both times.
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
        for tensor in _learnt(self.bag):
            tensor.requires_grad_()

    def send(self) -> None:
        """Call after `backward` of the loss: the gradients of the bags reach the weights."""
        after = torch_state()
        sizes = [len(part) for part in self.chunks]
        sent = [_gradient(tensor).split(sizes) for tensor in _learnt(self.bag)]
        for part, state, *gradients in zip(self.chunks, self.states, *sent, strict=True):
            set_torch_state(state)
            again = zip(_learnt(self.embed(part)), gradients, strict=True)
            pairs = [(tensor, gradient) for tensor, gradient in again if tensor.requires_grad]
            torch.autograd.backward(
                [tensor for tensor, _ in pairs],
                [gradient[:, : tensor.shape[1]] for tensor, gradient in pairs],  # no wider than this chunk
            )
        set_torch_state(after)


def _learnt(bag: Bag) -> list[Tensor]:
    """What of a bag gradients go through: its rows, and its vector where that is not made of them."""
    return [bag.values] if bag.whole is None else [bag.values, bag.whole]


def _gradient(tensor: Tensor) -> Tensor:
    """Zero where the loss did not look at it."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


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
