"""The paper's data sets in small: made catalogues of the same schema, and encoders of the true architectures.

`mufin import` turns the raw files into catalogues of this form; with such files it can replace these.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from made import COLOURS, SHAPES, picture
from mufin import Catalogue, Item

WORDS = (
    "oak",
    "desk",
    "lamp",
    "with",
    "drawer",
    "large",
    "set",
    "of",
    "two",
    "for",
    "kitchen",
    "garden",
    "black",
    "new",
)
CATEGORIES = ("Home and Kitchen", "Toys and Games", "Office Products")
POOL = [picture(colour, shape) for colour in COLOURS for shape in SHAPES]  # few, since each is encoded once


@cache
def titles(tokens: int) -> list[str]:
    """A hundred of them: few, since each is encoded once."""
    rng = np.random.default_rng(tokens)
    return [" ".join(rng.choice(WORDS, max(1, int(rng.poisson(tokens))))) for _ in range(100)]


def title(rng: np.random.Generator, tokens: int) -> str:
    return titles(tokens)[int(rng.integers(100))]


def pictures(rng: np.random.Generator, count: int) -> list:
    return [POOL[i] for i in rng.choice(len(POOL), count)]


def mm_amazontitles(folder: Path, share: float) -> None:
    """Product → product: titles, up to 15 pictures, either missing now and then; filter pairs."""
    rng = np.random.default_rng(0)
    train, labels, test = (max(4, round(share * n)) for n in (586_781, 303_296, 260_536))

    def product(name: str) -> Item:
        kind = rng.random()  # a few lack the title or all pictures, never both
        texts = [] if kind < 0.03 else [title(rng, 6)]
        images = [] if kind > 0.97 else pictures(rng, min(15, 1 + int(rng.poisson(3.91))))
        return Item(name, texts, images, category=str(rng.choice(CATEGORIES)))

    def relation(prefix: str, count: int) -> dict[str, list[str]]:
        sizes = np.minimum(labels, 1 + rng.poisson(7.13, count))
        return {
            f"{prefix}{i}": [f"l{j}" for j in rng.choice(labels, size, replace=False)]
            for i, size in enumerate(sizes)
        }

    splits = {"train": relation("t", train), "test": relation("s", test)}
    items = [product(name) for split in splits.values() for name in split]
    hidden = [(name, split[name][0]) for split in splits.values() for name in list(split)[:2]]
    Catalogue.build(items, [product(f"l{j}") for j in range(labels)], filter=hidden, **splits).write(folder)


def polyvore_disjoint(folder: Path, share: float) -> None:
    """Outfits of five items with a picture and a caption; questions of 4 candidates, all unseen."""
    rng = np.random.default_rng(0)
    outfits, questions = (max(2, round(share * n)) for n in (16_995, 15_145))
    used, fresh = 3 * outfits, 3 * questions + 8
    names = [f"{kind}{i}" for kind, count in (("i", used), ("q", fresh)) for i in range(count)]
    items = [Item(name, [title(rng, 5)], pictures(rng, 1)) for name in names]
    sets = [[f"i{j}" for j in rng.choice(used, 5, replace=False)] for _ in range(outfits)]
    Catalogue.build(items, sets={"train_outfits": sets}).write(folder)
    with (folder / "fitb_test.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(questions):
            row = [f"q{j}" for j in rng.choice(fresh, 8, replace=False)]
            json.dump({"query": row[:4], "choices": row[4:], "answer": int(rng.integers(4))}, file)
            file.write("\n")


def a2q(folder: Path, share: float) -> None:
    """Ads with a text and a picture → queries of text alone."""
    rng = np.random.default_rng(0)
    train, labels, test = (max(4, round(share * n)) for n in (9_618_490, 4_528_191, 3_933_149))

    def relation(prefix: str, count: int) -> dict[str, list[str]]:
        return {f"{prefix}{i}": [f"l{j}" for j in rng.choice(labels, 2, replace=False)] for i in range(count)}

    splits = {"train": relation("t", train), "test": relation("s", test)}
    items = [Item(name, [title(rng, 6)], pictures(rng, 1)) for split in splits.values() for name in split]
    Catalogue.build(items, [Item(f"l{j}", [title(rng, 3)]) for j in range(labels)], **splits).write(folder)


# What the commands of docs/reproduce.md call them, and how each is made.
MADE: dict[str, Callable[[Path, float], None]] = {
    "data/mm-amazontitles-300k": mm_amazontitles,
    "data/polyvore-disjoint": polyvore_disjoint,
    "data/a2q": a2q,
}


def true_encoders(folder: Path) -> dict[str, Path]:
    """DistilBERT (66 M weights), ViT-B/32 (88 M) and ResNet-18 (11 M), with random weights."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters, *(f"##{c}" for c in letters)]
    paths = {name: folder / name for name in ("distilbert", "vit", "resnet")}
    for path in paths.values():
        path.mkdir(parents=True)
    (paths["distilbert"] / "vocab.txt").write_text("\n".join(words))
    hf.BertTokenizer(str(paths["distilbert"] / "vocab.txt")).save_pretrained(paths["distilbert"])
    resnet = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "layer_type": "basic"}
    networks = {
        "distilbert": hf.DistilBertModel(hf.DistilBertConfig()),
        "vit": hf.ViTModel(hf.ViTConfig(patch_size=32), add_pooling_layer=False),
        "resnet": hf.ResNetModel(hf.ResNetConfig(embedding_size=64, **resnet)),
    }
    for name, network in networks.items():
        network.save_pretrained(paths[name])
    return paths
