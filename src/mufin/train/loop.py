"""Training code shared by Modules I and IV: random state, optimizers, schedule, gradient caching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from mufin.data.ragged import CPU
from mufin.encode.bag import Bag, joined
from mufin.encode.embedder import Embedder
from mufin.progress import QUIET, Progress
from mufin.settings import Finetune, Pretrain
from mufin.train.checkpoint import Checkpoints, State
from mufin.train.ranks import ALONE, Ranks
from mufin.train.row_adam import RowAdam

MODULES = ("pretrain", "finetune")  # those with epochs, in order


def seeded(seed: int, device: torch.device = CPU) -> torch.Generator:
    """Create a seeded random number generator on a device."""
    return torch.Generator(device).manual_seed(seed)


@dataclass(frozen=True)
class Event:
    """What callbacks receive: the loss every few steps, the P@1 of held-out points after some epochs."""

    module: str  # "pretrain" or "finetune"
    epoch: int  # from 0
    epochs: int
    step: int  # finished steps of the module
    steps: int
    values: dict[str, float]  # {"loss": 0.1} or {"validation P@1": 45.0}


Callback = Callable[[Event], None]


@dataclass
class Context:
    """Random state, progress and limits of a run; dropout uses torch's global generator instead."""

    generator: torch.Generator = field(default_factory=lambda: seeded(0))
    progress: Progress = QUIET
    callbacks: Sequence[Callback] = ()
    batches: int | None = None  # maximum per epoch
    patience: int | None = None  # validations without a better P@1 that end a module
    checkpoints: Checkpoints | None = None

    def batches_per_epoch(self, n: int, batch: int) -> int:
        """Return the number of batches in an epoch over n examples."""
        return min(-(-n // batch), self.batches or n)

    def resumes_after(self, module: str) -> bool:
        """Whether a killed run had finished this module and was in a later one."""
        saved = None if self.checkpoints is None else self.checkpoints.saved
        return saved is not None and MODULES.index(saved.module) > MODULES.index(module)

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
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        # A frozen network has an empty group. If all groups are empty, only the classifiers are trained.
        groups = [group for group in dense if group["params"]]
        self.optimizers: list[Optimizer] = []
        self.row_optimizers: list[Optimizer] = []  # whose weights are spread over ranks
        if groups:
            self.optimizers.append(
                torch.optim.AdamW(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
            )
        if sparse and any(group["params"] for group in sparse):
            self.row_optimizers.append(RowAdam(sparse))
        self.dense = [p for group in groups for p in group["params"]]
        self.schedules = [one_cycle(each, steps, settings.warmup) for each in self._all]

    @property
    def _all(self) -> list[Optimizer]:
        return [*self.optimizers, *self.row_optimizers]

    def step(self, loss: Tensor, cached: Sequence[CachedBags] = ()) -> Tensor:
        """Backpropagate this rank's loss and update all weights; return the loss summed over ranks."""
        if not loss.requires_grad:  # everything is frozen
            return self.ranks.sum(loss)
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for bags in cached:
            bags.backward()
        total = self.ranks.sum_gradients(self.dense, loss.detach())  # rows of classifiers have one owner
        nn.utils.clip_grad_norm_(self.dense, 1.0)
        for optimizer, schedule in zip(self._all, self.schedules, strict=True):
            optimizer.step()
            schedule.step()
        return total

    def state_dict(self) -> State:
        """Return the state of optimizers and schedules that is the same on all ranks."""
        parts: dict[str, Sequence[Any]] = {"optimizers": self.optimizers, "schedules": self.schedules}
        return {name: [each.state_dict() for each in part] for name, part in parts.items()}

    def rows_state_dict(self) -> list[State]:
        """Return the state of the optimizers of this rank's rows."""
        return [optimizer.state_dict() for optimizer in self.row_optimizers]

    def load_state_dict(self, state: State, rows: list[State]) -> None:
        """Restore what `state_dict` and `rows_state_dict` returned."""
        for optimizer, saved in zip(self._all, [*state["optimizers"], *rows], strict=True):
            optimizer.load_state_dict(saved)
            for weight, moments in optimizer.state.items():
                for name, moment in moments.items():
                    if isinstance(moment, Tensor) and moment.shape == weight.shape:
                        # Fused steps need moments with the memory layout of their weight.
                        moments[name] = torch.empty_like(weight, dtype=moment.dtype).copy_(moment)
        for schedule, saved in zip(self.schedules, state["schedules"], strict=True):
            schedule.load_state_dict(saved)


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
