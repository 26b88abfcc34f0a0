"""Gradient caching: a batch as large as one likes, embedded a chunk at a time, with exact gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mufin.bag import Bag
from mufin.ragged import Ints

Embed = Callable[[Ints], Bag]


class CachedBags:
    """Bags computed without a graph; `send` computes them again, chunk by chunk, to pass their gradients on.

    Only one chunk's activations are held at a time. The random numbers of dropout are the same both times.
    """

    def __init__(self, embed: Embed, rows: Ints, chunk: int) -> None:
        self.embed = embed
        self.chunks = np.array_split(rows, max(1, -(-len(rows) // chunk)))
        self.states: list[Any] = []
        bags = []
        with torch.no_grad():
            for part in self.chunks:
                self.states.append(_random_state())
                bags.append(embed(part))
        width = max(bag.mask.shape[1] for bag in bags)
        missing = [width - bag.mask.shape[1] for bag in bags]
        values = [F.pad(bag.values, (0, 0, 0, more)) for bag, more in zip(bags, missing, strict=True)]
        masks = [F.pad(bag.mask, (0, more)) for bag, more in zip(bags, missing, strict=True)]
        self.bag = Bag(torch.cat(values).requires_grad_(), torch.cat(masks))

    def send(self) -> None:
        """Call after `backward` of the loss: the gradients of the bags reach the weights."""
        assert self.bag.values.grad is not None
        after = _random_state()
        gradients = self.bag.values.grad.split([len(part) for part in self.chunks])
        for part, state, gradient in zip(self.chunks, self.states, gradients, strict=True):
            _set_random_state(state)
            values = self.embed(part).values
            if values.requires_grad:
                values.backward(gradient[:, : values.shape[1]])
        _set_random_state(after)


def _random_state() -> Any:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), cuda


def _set_random_state(state: Any) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
