"""Vectors as points of a plane: t-SNE from a PCA start, the same points every time."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float32]
FEW, MANY = 10, 20_000  # vectors; t-SNE of more takes minutes
STEPS = 750


def plane(vectors: Points, told: Callable[[float], None] | None = None) -> tuple[Points, str]:
    """Points (n, 2) within −1 … 1 and how they were found: t-SNE if scikit-learn is there, else PCA.

    `told` is called with the share that is done.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        TSNE = None
    start = pca(vectors)
    if TSNE is None or not FEW <= len(vectors) <= MANY:
        return _fitted(start), "PCA"
    tsne = TSNE(
        2, perplexity=min(30.0, (len(vectors) - 1) / 4), metric="cosine", max_iter=STEPS, random_state=0,
        init=start / max(float(start[:, 0].std()), 1e-9) * 1e-4, verbose=0 if told is None else 2, n_jobs=1,
    )  # fmt: skip
    with nullcontext() if told is None else redirect_stdout(_Listener(told)):
        return _fitted(tsne.fit_transform(vectors)), "t-SNE"


def pca(vectors: Points) -> Points:
    """The coordinates along the two directions of greatest variance, (n, 2)."""
    centred = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, :-3:-1]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # an axis may point either way
    points = centred @ (axes * signs)
    return np.asarray(np.pad(points, ((0, 0), (0, 2 - points.shape[1]))), np.float32)  # vectors of one number


def _fitted(points: Points) -> Points:
    """Moved to the middle and scaled into −1 … 1."""
    low, high = points.min(0), points.max(0)
    return np.asarray((points - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-9), np.float32)


class _Listener(io.StringIO):
    """Reads the progress out of what t-SNE prints."""

    def __init__(self, told: Callable[[float], None]) -> None:
        super().__init__()
        self.told = told

    def write(self, text: str) -> int:
        if found := re.search(r"Iteration (\d+)", text):
            self.told(min(int(found[1]) / STEPS, 1.0))
        return len(text)
