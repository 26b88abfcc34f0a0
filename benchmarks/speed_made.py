"""Made catalogues of the paper's sizes, and models of random weights over them, for `speed.py`.

Vectors: labels lie in nested groups (topics, sub-topics), a label's entries around its own place, queries
around labels, with a share of a second one. `speed.py` checks on a CPU that an index finds these no easier
than those of a trained model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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


def made_titles(vocabulary: Iterable[str], n: int, words: int, seed: int = 0) -> list[str]:
    """Titles of whole words of a tokenizer, the r-th most frequent r^−0.9 times as often as the first."""
    known = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2)
    random = np.random.default_rng(seed)
    chance = 1 / np.arange(1, len(known) + 1) ** 0.9
    drawn = random.choice(random.permutation(known), (n, words), p=chance / chance.sum())
    return [" ".join(row) for row in drawn.tolist()]


def paper_layout(folder: Path) -> None:
    """Configuration and tokenizer of ViT-B/32 and DistilBERT, as a model folder keeps them; no weights."""
    import transformers as hf

    text, vision = folder / "text", folder / "vision"
    text.mkdir(parents=True), vision.mkdir(parents=True)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (text / "vocab.txt").write_text("\n".join(words))
    hf.DistilBertConfig().save_pretrained(text)
    hf.BertTokenizer(str(text / "vocab.txt")).save_pretrained(text)
    hf.ViTConfig(patch_size=32).save_pretrained(vision)


def paper_config(trained: str = "paper"):
    """The paper's settings: ViT-B/32 with its last layer trained, DistilBERT end to end, cross-attention."""
    from mufin.config import Config

    return Config.preset(trained)


def made_labels(world: World):
    """What a model knows of these labels: the last entry of each is its centroid, the others are its bag."""
    from mufin.bag import PackedBags
    from mufin.data.item import Item
    from mufin.data.items import Items
    from mufin.labels import Labels

    entries, n = world.entries, world.entries.n_labels
    sizes = torch.bincount(entries.labels, minlength=n)
    last = sizes.cumsum(0) - 1
    in_bag = torch.ones(len(entries), dtype=torch.bool, device=last.device)
    in_bag[last] = False
    bags = PackedBags(entries.vectors[in_bag], F.pad((sizes - 1).cumsum(0), (1, 0)))
    ones = torch.ones(n, device=last.device)
    weights = F.normalize(bags.vectors() + entries.vectors[last], dim=1)
    return Labels(
        Items.of([Item("0", ["a label"])]),  # ranking reads no names
        bags.halved(), weights.half(), ones / 2, entries.vectors[last], ones.bool(), ones, ones.bool(),
        own_items=False,
    )  # fmt: skip


def flops_of_layer(tokens: int, width: int = 768, inner: int = 3072) -> float:
    """Forward, one sequence through one transformer layer: projections, attention, feed-forward."""
    return 2 * tokens * (4 * width * width + 2 * width * inner) + 4 * tokens * tokens * width


def flops_of_vit(size: int = 224, patch: int = 32) -> float:
    tokens = (size // patch) ** 2 + 1
    return 12 * flops_of_layer(tokens) + 2 * (tokens - 1) * 3 * patch * patch * 768


def flops_of_distilbert(tokens: int) -> float:
    return 6 * flops_of_layer(tokens)


def exponent(sizes: list[float], times: list[float]) -> float:
    """The slope of log time over log size, by least squares."""
    x, y = [math.log(s) for s in sizes], [math.log(t) for t in times]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
