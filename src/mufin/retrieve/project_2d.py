"""Project vectors to two dimensions with t-SNE, for the maps in the service and the report."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
TSNE_MIN_VECTORS, TSNE_MAX_VECTORS = 10, 20_000  # beyond 20,000, t-SNE takes minutes
TSNE_ITERATIONS, TSNE_ANGLE = 500, 0.8  # 750 and 0.5 take twice as long, for no better neighbourhoods


def project_2d(vectors: Floats, on_progress: Callable[[float], None] | None = None) -> tuple[Floats, str]:
    """Return points (n, 2) within −1 … 1 and the method: "t-SNE", or "PCA" if t-SNE does not apply.

    The same vectors always give the same points. `on_progress` is called with the fraction done.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        TSNE = None
    start = _pca(vectors)
    if TSNE is None or not TSNE_MIN_VECTORS <= len(vectors) <= TSNE_MAX_VECTORS:
        return _fit_to_square(start), "PCA"
    tsne = TSNE(
        2, perplexity=min(30.0, (len(vectors) - 1) / 4), metric="cosine", max_iter=TSNE_ITERATIONS,
        angle=TSNE_ANGLE, random_state=0, init=start / max(float(start[:, 0].std()), 1e-9) * 1e-4,
        verbose=0 if on_progress is None else 2, n_jobs=1,
    )  # fmt: skip
    with nullcontext() if on_progress is None else redirect_stdout(_ProgressParser(on_progress)):
        return _fit_to_square(tsne.fit_transform(vectors)), "t-SNE"


def _pca(vectors: Floats) -> Floats:
    """Return coordinates along the first two principal axes, (n, 2)."""
    centred = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, :-3:-1]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # fix arbitrary signs
    points = centred @ (axes * signs)
    return np.asarray(np.pad(points, ((0, 0), (0, 2 - points.shape[1]))), np.float32)  # D may be 1


def _fit_to_square(points: Floats) -> Floats:
    """Centre the points and scale them into −1 … 1."""
    low, high = points.min(0), points.max(0)
    return np.asarray((points - (low + high) / 2) / max(float((high - low).max()) / 2, 1e-9), np.float32)


class _ProgressParser(io.StringIO):
    """Parse the progress from the output of t-SNE; scikit-learn has no callback."""

    def __init__(self, on_progress: Callable[[float], None]) -> None:
        super().__init__()
        self.on_progress = on_progress

    def write(self, text: str) -> int:
        if found := re.search(r"Iteration (\d+)", text):
            self.on_progress(min(int(found[1]) / TSNE_ITERATIONS, 1.0))
        return len(text)
