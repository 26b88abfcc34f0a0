"""Find the labels nearest to an item with an exported model: no torch, no mufin.

    pip install numpy onnxruntime pillow tokenizers
    python onnx_search.py shop-onnx --text "oak desk" --image desk.jpg

Prints id, text and similarity of ten labels as JSON lines: those of `model.shortlist(item, 10)`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from onnxruntime import InferenceSession
from PIL import Image, ImageOps
from tokenizers import Tokenizer


class Searcher:
    """The folder that `mufin export --to onnx` has written."""

    def __init__(self, folder):
        folder = Path(folder)
        self.facts = json.loads((folder / "export.json").read_text("utf-8"))
        self.graphs = {path.stem: InferenceSession(path) for path in folder.glob("*.onnx")}
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))  # truncates
        self.entries = np.load(folder / "entries.npy", mmap_mode="r")  # (E, D)
        self.owners = np.load(folder / "owners.npy")  # (E,) rows of self.labels
        with (folder / "labels.jsonl").open(encoding="utf-8") as lines:
            self.labels = [json.loads(line) for line in lines]

    def search(self, texts, images, k=10):
        """Return the k labels whose best entry is most similar to the item."""
        similarity = self.entries @ self.embed(texts, images)  # (E,)
        best = np.full(len(self.labels), -np.inf, np.float32)
        np.maximum.at(best, self.owners, similarity)  # a label may own several entries
        order = np.argsort(-best, kind="stable")[:k]
        return [{**self.labels[row], "similarity": float(best[row])} for row in order]

    def embed(self, texts, images):
        """Return the vector of an item, (D,)."""
        reads = self.facts["reads"]
        texts = [text for text in texts if text.strip()] if reads != "image" else []
        images = images if reads != "text" else []
        rows = [self.embed_texts(texts)] if texts else []
        rows += [self.embed_images(images)] if images else []
        if not rows:
            raise ValueError(f"nothing to embed: this model reads {reads}")
        bag = np.concatenate(rows)[None]  # (1, m, D)
        return self.graphs["bag"].run(None, {"rows": bag, "mask": np.ones(bag.shape[:2], bool)})[0][0]

    def embed_texts(self, texts):
        """Return a row per text, (n, D)."""
        shortened = [text[: self.facts["text"]["max_characters"]] for text in texts]
        found = [encoding.ids for encoding in self.tokenizer.encode_batch(shortened)]
        ids = np.zeros((len(found), max(map(len, found))), np.int64)
        mask = np.zeros_like(ids)
        for row, tokens in enumerate(found):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        return self.graphs["text"].run(None, {"ids": ids, "mask": mask})[0]

    def embed_images(self, images):
        """Return a row per image file, (n, D)."""
        size = self.facts["image"]["size"]
        return self.graphs["image"].run(None, {"pixels": np.stack([pixels(i, size) for i in images])})[0]


def pixels(path, size):
    """Return an image upright on white, its longer side scaled to `size`: (size, size, 3) uint8."""
    with Image.open(path) as file:
        image = ImageOps.exif_transpose(file).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    width, height = (max(1, round(side * size / max(image.size))) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    canvas = Image.new("RGB", (size, size), "white")
    canvas.paste(image, ((size - width) // 2, (size - height) // 2))
    return np.array(canvas)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("--image", action="append", default=[])
    parser.add_argument("-k", type=int, default=10)
    asked = parser.parse_args()
    for hit in Searcher(asked.folder).search(asked.text, asked.image, asked.k):
        print(json.dumps(hit, ensure_ascii=False))
