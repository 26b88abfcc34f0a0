"""What faiss holds of the entries: a graph over few of them; lists of 4-bit codes over many."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]

GRAPH = 20_000  # up to here HNSW over 8-bit vectors: too few to learn lists and codes from
BREADTH = (
    100  # efConstruction: with the 40 of faiss more is missed at the same effort, 200 builds half as fast
)
POINTS, ROUNDS = 40, 8  # of k-means: entries a list (faiss wants 39), and passes; more finds nothing more
ENERGY = 0.95  # of Σ v², kept by the directions that lists and codes know of
STEP = 16  # directions come in so many at a time


def build(vectors: Floats) -> Any:
    """The faiss index for inner products over unit vectors (E, D)."""
    faiss = load_faiss()
    n, width = vectors.shape
    if n <= GRAPH:
        graph = faiss.index_factory(width, "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = BREADTH
        if n:
            graph.train(vectors)
            graph.add(vectors)
        return graph
    lists = min(round(2 * n**0.5), n // POINTS)
    chosen = np.random.default_rng(0).choice(n, min(n, POINTS * lists), replace=False)
    some = vectors[np.sort(chosen)]
    turn = directions(some)
    kept = len(turn)
    codes = f"IVF{lists},PQ{kept // 2 if kept % 2 == 0 else kept}x4fs"
    inner = faiss.index_factory(kept, codes, faiss.METRIC_INNER_PRODUCT)
    inner.cp.niter, inner.cp.max_points_per_centroid = ROUNDS, POINTS
    linear = faiss.LinearTransform(width, kept, False)
    faiss.copy_array_to_vector(turn.ravel(), linear.A)
    linear.is_trained = True
    index = faiss.IndexPreTransform(linear, inner)
    index.train(some)
    index.add(vectors)
    return index


def directions(vectors: Floats) -> Floats:
    """(d, D): orthogonal directions that hold most of the length of vectors (n, D), great and small in turn.

    Inner products lose little, and codes of two numbers each get pairs of like variance.
    """
    moments = torch.from_numpy(vectors.T @ vectors).double()
    values, axes = torch.linalg.eigh(moments)  # ascending
    share = values.flip(0).clamp(min=0).cumsum(0) / values.clamp(min=0).sum()
    enough = int((share < ENERGY).sum()) + 1
    kept = min(-(-enough // STEP) * STEP, vectors.shape[1])
    basis: Tensor = axes.flip(1)[:, :kept].T  # (d, D), the greatest first
    turns = torch.stack([torch.arange(kept), torch.arange(kept).flip(0)], 1).flatten()[:kept]
    return np.ascontiguousarray(basis[turns].float().numpy())


def load_faiss() -> Any:
    """faiss, loaded when it is first needed."""
    import faiss

    return faiss
