"""Make queries for the calibration: strange ones that no catalogue answers, and held-out points in part."""

from __future__ import annotations

import io
import re
import string
from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc
import torch
from PIL import Image
from torch import Tensor

from mufin.data.catalogue import Catalogue
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.encode.features import Features, Groups
from mufin.model.mufin import Mufin
from mufin.signals.evidence import familiarity
from mufin.train.data import TrainingData

STRANGE = 100  # queries of each kind
MAX_POINTS = 200  # held-out points that are shown in part
MAX_WORDS, MAX_LETTERS = 4, 11  # of a strange text, of its made-up words
SIDES = (1, 2, 8, 24, 64)  # pixels of noise, from one colour to fine grain
SIDE = 96  # pixels of an image
WORD = re.compile(r"[a-z]{4,}")
READ_TEXTS = 1 << 18  # whose words are known


def clues_of_strange_queries(model: Mufin, catalogue: Catalogue, seed: int) -> list[Tensor]:
    """Return the clues (n, F) of made-up words, unknown words and noise images, each kind by itself."""
    rng = np.random.default_rng(seed)
    return [_clues(model, model.features(items)) for items in _strange_items(model, catalogue, rng)]


def clues_of_parts(model: Mufin, catalogue: Catalogue, held: TrainingData) -> list[Tensor]:
    """Return the clues (n, F) of held-out points with only their texts, and with only their images."""
    if model.config.modalities != "both":
        return []
    some = held.groups.take(np.arange(min(MAX_POINTS, len(held.groups)), dtype=np.int64))
    used, members = np.unique(some.members, return_inverse=True)
    groups, items = Groups(some.offsets, members.astype(np.int64)), catalogue.items.take(used)
    parts = (model.features(items.only(modality)) for modality in ("text", "image"))
    return [_clues(model, part, groups) for part in parts]


@torch.no_grad()
def _clues(model: Mufin, features: Features, groups: Groups | None = None) -> Tensor:
    """Return the clues (n, F) of those of the queries that have any content."""
    groups = groups or Groups.singles(np.arange(len(features)))
    sizes = np.add.reduceat(features.sizes[groups.members], groups.offsets[:-1])
    return familiarity(model.signals, model.query(features, groups.take(np.flatnonzero(sizes))))


def _strange_items(model: Mufin, catalogue: Catalogue, rng: np.random.Generator) -> Iterator[Items]:
    """Yield the items of each kind that the model can read."""
    modalities, unknown = model.config.modalities, _unknown_words(model, catalogue)

    def made_up() -> str:
        lengths = rng.integers(2, MAX_LETTERS + 1, rng.integers(1, MAX_WORDS))
        return " ".join("".join(rng.choice(list(string.ascii_lowercase), length)) for length in lengths)

    def words() -> str:
        return " ".join(rng.choice(unknown, rng.integers(1, MAX_WORDS + 1))) if len(unknown) else made_up()

    def items(texts: list[str], images: list[bytes]) -> Items:
        pairs = enumerate(zip(texts or [""] * STRANGE, images or [b""] * STRANGE, strict=True))
        return Items.of([Item(str(i), [t] if t else [], [p] if p else []) for i, (t, p) in pairs])

    made_up_texts, unknown_texts = ([make() for _ in range(STRANGE)] for make in (made_up, words))
    if modalities != "image":
        yield from (items(texts, []) for texts in (made_up_texts, unknown_texts))
    if modalities != "text":
        yield items([], [_noise(rng) for _ in range(STRANGE)])
    if modalities == "both":
        yield items(made_up_texts[::2] + unknown_texts[::2], [_noise(rng) for _ in range(STRANGE)])


def _unknown_words(model: Mufin, catalogue: Catalogue) -> list[str]:
    """Return the words of the text encoder's vocabulary that no text of the catalogue has."""
    vocabulary = {word for word in model.embedder.text.tokenizer.get_vocab() if WORD.fullmatch(word)}
    for items in (catalogue.items, catalogue.labels):
        texts = items.flat_texts()[1][:READ_TEXTS]
        parts = pc.list_flatten(pc.split_pattern_regex(pc.utf8_lower(texts), r"[^a-z]+"))
        vocabulary.difference_update(pc.unique(parts).to_pylist())
    return sorted(vocabulary)


def _noise(rng: np.random.Generator) -> bytes:
    """Return an uncompressed PNG of smooth noise, sometimes of one colour."""
    side = int(rng.choice(SIDES))
    pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
    image, buffer = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC), io.BytesIO()
    image.save(buffer, "PNG", compress_level=0)
    return buffer.getvalue()
