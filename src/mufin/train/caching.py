"""Gradient caching: a batch as large as one likes, embedded a chunk at a time, with exact gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.bag import Bag, joined
from mufin.train.context import set_torch_state, torch_state

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
