"""Late fusion of the frozen encoders: concatenated unit vectors of text and image.

x = N([√t · N(text), √(1 − t) · N(image)]), so that ⟨x, y⟩ = t · cos(texts) + (1 − t) · cos(images) if both
exist. Each half is first centred on the training points.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from scipy.sparse import csr_matrix

from mufin import Catalogue, Config
from mufin.data.items import Items
from mufin.data.split import Split
from mufin.encode.embedder import Embedder
from mufin.encode.features import Groups
from mufin.model.store import pick_device
from peers.common import best_columns

ENCODERS = [
    *("text.model=offline", "text.train_layers=0"),
    *("vision.model=offline", "vision.train_layers=0", "vision.size=128"),
]
NEIGHBOURS = 50
BLOCK_QUERIES = 512


def neighbours(catalogue: Catalogue, seed: int, text: float, temperature: float) -> np.ndarray:
    """The 50 nearest training points vote for their labels with softmax(⟨x, x_i⟩ / temperature)."""
    train, test = catalogue.split("train"), catalogue.split("test")
    points, queries = vectors(catalogue, train, test, text=text)
    relevance, found = csr_matrix(train.relevance, dtype=np.float32), []
    known, asked = (torch.from_numpy(rows).to(pick_device("auto")) for rows in (points, queries))
    for start in range(0, len(asked), BLOCK_QUERIES):
        block = (asked[start : start + BLOCK_QUERIES] @ known.T).topk(NEIGHBOURS)
        votes = (block.values / temperature).softmax(1).cpu().numpy()
        ends = np.arange(0, votes.size + 1, NEIGHBOURS)
        shape = len(votes), len(points)
        scores = (
            csr_matrix((votes.ravel(), block.indices.cpu().numpy().ravel(), ends), shape) @ relevance
        ).toarray()
        scores[scores == 0] = -np.inf
        found.append(best_columns(scores, test.exclude[start : start + BLOCK_QUERIES]))
    return np.concatenate(found)


def linear(catalogue: Catalogue, seed: int, text: float, ridge: float) -> np.ndarray:
    """One ridge regression per label: W = (XᵀX + λI)⁻¹ XᵀY, in closed form."""
    train, test = catalogue.split("train"), catalogue.split("test")
    points, queries = vectors(catalogue, train, test, text=text)
    gram = points.T @ points + ridge * np.eye(points.shape[1], dtype=points.dtype)
    weights = np.linalg.solve(gram, (csr_matrix(train.relevance, dtype=np.float32).T @ points).T)  # (H, L)
    blocks = range(0, len(queries), BLOCK_QUERIES)
    return np.concatenate(
        [
            best_columns(
                queries[at : at + BLOCK_QUERIES] @ weights, test.exclude[at : at + BLOCK_QUERIES]
            ).astype(np.int64)
            for at in blocks
        ]
    )


def vectors(catalogue: Catalogue, train: Split, *others: Split, text: float) -> list[np.ndarray]:
    """The vector x of each point of these splits, (n, 384 + 1280), centred on `train`."""
    texts, images = _encoded(catalogue.items)
    halves = []
    for rows, weight in ((texts, text), (images, 1 - text)):
        means = [_mean(rows, split) for split in (train, *others)]
        centre = means[0].mean(axis=0)
        halves.append([np.sqrt(weight) * _unit(mean - centre * mean.any(1, keepdims=True)) for mean in means])
    return [_unit(np.concatenate(both, axis=1)) for both in zip(*halves, strict=True)]


@lru_cache(1)
def _encoded(items: Items) -> tuple[np.ndarray, np.ndarray]:
    """The mean unit vector of each item's texts and of its images, 0 if it has none."""
    embedder = Embedder(Config().override(ENCODERS)).to(pick_device("auto"))
    everything = np.arange(len(items), dtype=np.int64)
    features = embedder.features(items)
    groups = Groups.singles(everything)
    found = []
    for part in (features.text, features.image):
        chosen, item = part.select(groups)
        rows = _unit(part.rows.take(chosen)[0].numpy()[:, 0].astype(np.float32))
        found.append(_average(rows, item, len(groups)))
    return found[0], found[1]


def _mean(rows: np.ndarray, split: Split) -> np.ndarray:
    """The mean of the rows of each point's items."""
    owner = np.repeat(np.arange(len(split)), np.diff(split.offsets))
    return _average(rows[split.members], owner, len(split))


def _average(rows: np.ndarray, owner: np.ndarray, n: int) -> np.ndarray:
    count = np.maximum(np.bincount(owner, minlength=n), 1).astype(np.float32)
    weights = csr_matrix((1 / count[owner], (owner, np.arange(len(rows)))), shape=(n, len(rows)))
    return np.asarray(weights @ rows)


def _unit(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(length == 0, 1, length)
