"""Made vectors of the paper's sizes: labels in nested topics, entries and queries around labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.retrieve.entries import Entries

DIM = 192  # the paper's D
SIZES = {"10K": 10_000, "100K": 100_000, "303K": 303_296, "1M": 1_000_000, "4.5M": 4_528_191}


@dataclass(frozen=True)
class World:
    """Labels with entries, and queries to come."""

    name: str
    entries: Entries
    queries: Tensor  # (Q, D)


def made(name: str, n_queries: int, device: str = "cpu", seed: int = 0) -> World:
    """A catalogue of that size: 2 entries a label for the text labels of 4.5M, else 2 to 12, 7 on average."""
    n = SIZES[name] if name in SIZES else int(name)
    generator = torch.Generator(device).manual_seed(seed)

    def pick(places: Tensor, count: int) -> Tensor:
        return places[torch.randint(len(places), (count,), generator=generator, device=device)]

    # variances fall as those of trained queries: exp(−i / 28), as if there were 56 dimensions
    fading = torch.exp(-torch.arange(DIM, device=device) / 56)

    def around(places: Tensor, spread: float) -> Tensor:
        """N(place + spread · a random direction), block by block to save memory."""
        for block in places.split(2**20):
            noise = fading * torch.randn(block.shape, generator=generator, device=device)
            block.add_(F.normalize(noise, dim=1), alpha=spread)
            block.copy_(F.normalize(block, dim=1))
        return places

    topics = around(torch.zeros(max(1, n // 1000), DIM, device=device), 1.0)
    below = around(pick(topics, max(1, n // 30)), 1.0)
    labels = around(pick(below, n), 0.9)
    share = 0.5 * torch.rand(n_queries, 1, generator=generator, device=device)
    queries = around(pick(labels, n_queries) + share * pick(labels, n_queries), 0.9)  # somewhat of two things
    counts = torch.full((n,), 2, device=device)
    if name != "4.5M":
        counts = torch.randint(2, 13, (n,), generator=generator, device=device)
    owner = torch.arange(n, device=device).repeat_interleave(counts)
    return World(name, Entries(around(labels[owner], 0.75), owner, n), queries)


def exponent(sizes: list[float], times: list[float]) -> float:
    """The slope of log time over log size, by least squares."""
    x, y = [math.log(s) for s in sizes], [math.log(t) for t in times]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
