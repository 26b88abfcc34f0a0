"""Ranks: the processes of one training, each with a share of the data and of the classifiers.

torchrun starts them; a single process is rank 0 of 1, at no extra cost. Every rank draws the
same batches and owns some points and labels: it reads features, encodes, searches and keeps classifiers only
for those. The loss of a step is the sum of what each rank adds to it, and so are its gradients:

    ranks.gather(rows of what this rank owns, owner)  # the rows of all; gradients flow back to their owners
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn import functional as F

from mufin.encode.bag import Bag, PackedBags

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # others wait while rank 0 assembles a model; torchrun stops them if it dies


@dataclass(frozen=True)
class Ranks:
    """One of `size` processes that train together."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: str) -> Ranks:
        """Connect to the other processes of a torchrun; without one, return the only rank."""
        if not several_processes():
            return cls()
        on_gpus = device != "cpu" and torch.cuda.is_available()
        if on_gpus:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        if not dist.is_initialized():
            store, rank, size = next(rendezvous("env://"))
            # torchrun keeps its store over restarts: without a prefix, ranks would call processes that died.
            attempt = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            backend = "nccl" if on_gpus else "gloo"
            dist.init_process_group(backend, store=attempt, rank=rank, world_size=size, timeout=PATIENCE)
            atexit.register(dist.destroy_process_group)  # or its threads abort the process
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this rank reports, and writes the run folder."""
        return self.rank == 0

    def owns(self, owner: Tensor) -> Tensor:
        """Return the positions with this owner (n,)."""
        if self.size == 1:
            return torch.arange(len(owner), device=owner.device)
        return (owner == self.rank).nonzero()[:, 0]

    # -- tensors ---------------------------------------------------------------------------------------------

    def gather(self, rows: Tensor, owner: Tensor) -> Tensor:
        """Return the rows (n, …) of all ranks, given those of this one, (n_r, …), and each row's owner (n,).

        In the backward pass, the gradients of all ranks are added up and go to the owner.
        """
        if self.size == 1:
            return rows
        if rows.dtype == torch.bool:
            return self.gather(rows.byte(), owner).bool()
        if torch.is_grad_enabled() and rows.is_floating_point() and not rows.requires_grad:
            rows = rows.detach().requires_grad_()  # a rank without rows must take part in the backward pass
        gathered: Tensor = _Gather.apply(rows, owner, self)  # type: ignore[no-untyped-call]  # of torch
        return gathered

    def gather_bag(self, bag: Bag, owner: Tensor) -> Bag:
        """Return the bags of all ranks, padded to the longest."""
        if self.size == 1:
            return bag
        width = torch.tensor(bag.mask.shape[1], device=owner.device)
        dist.all_reduce(width, dist.ReduceOp.MAX)
        missing = int(width) - bag.mask.shape[1]
        values = self.gather(F.pad(bag.values, (0, 0, 0, missing)), owner)
        mask = self.gather(F.pad(bag.mask, (0, missing)), owner)
        return Bag(values, mask, None if bag.whole is None else self.gather(bag.whole, owner))

    def gather_packed(self, bags: PackedBags, owner: Tensor) -> PackedBags:
        """Return the packed bags of all ranks."""
        if self.size == 1:
            return bags
        lengths = self.gather(bags.offsets.diff(), owner)
        rows = self.gather(bags.rows, owner.repeat_interleave(lengths))
        whole = None if bags.whole is None else self.gather(bags.whole, owner)
        return PackedBags(rows, F.pad(lengths.cumsum(0), (1, 0)), whole)

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, weights: Sequence[nn.Parameter], loss: Tensor) -> Tensor:
        """Add up gradients and loss over all ranks; return the loss of the whole batch."""
        if self.size == 1:
            return loss
        # A weight that no rank used keeps no gradient, or it would decay.
        used = torch.tensor([weight.grad is not None for weight in weights], device=loss.device)
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        flat = self.sum(torch.cat([loss.reshape(1).float(), used.float(), *(g.flatten() for g in gradients)]))
        loss, used, rest = flat[0], flat[1 : 1 + len(weights)] > 0, flat[1 + len(weights) :]
        sizes = [weight.numel() for weight in weights]
        for weight, is_used, part in zip(weights, used.tolist(), rest.split(sizes), strict=True):
            weight.grad = part.view_as(weight) if is_used else None
        return loss

    def share(self, embed: Callable[[Tensor], Bag], rows: Tensor, owner: Tensor) -> Bag:
        """Embed these rows (n,), each on the rank that owns it."""
        return embed(rows) if self.size == 1 else self.gather_bag(embed(rows[self.owns(owner)]), owner)

    def copy(self, *modules: nn.Module) -> None:
        """Copy all weights and buffers of rank 0, so that every rank starts from the same."""
        if self.size > 1:
            for module in modules:
                for tensor in (*module.parameters(), *module.buffers()):
                    dist.broadcast(tensor.data, src=0)

    # -- objects ---------------------------------------------------------------------------------------------

    def agree(self, value: T) -> T:
        """Return the value of rank 0."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def collect(self, value: T) -> list[T]:
        """Return the values of all ranks, in order, to rank 0; the others get their own."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.first else None
        dist.gather_object(value, values)
        return [value] if values is None else values

    def wait(self) -> None:
        """Wait for all ranks."""
        self.agree(None)
        self.collect(None)


ALONE = Ranks()


def several_processes() -> bool:
    """Whether torchrun started this process together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process is the only one or rank 0, known before the ranks connect."""
    return os.environ.get("RANK", "0") == "0"


class _Gather(torch.autograd.Function):
    """All-gather of unequal shares; its gradient is the sum over ranks, cut to the own share."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, owner: Tensor, ranks: Ranks) -> Tensor:
        of_rank = owner == torch.arange(ranks.size, device=owner.device)[:, None]  # (R, n)
        longest = int(of_rank.sum(1).max())
        place = (of_rank.cumsum(1) - 1).gather(0, owner[None])[0]  # (n,) position within the owner's share
        ctx.mine, ctx.ranks = ranks.owns(owner), ranks
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(ranks.size)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[owner * longest + place]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.ranks.sum(gradient.contiguous())[ctx.mine], None, None
