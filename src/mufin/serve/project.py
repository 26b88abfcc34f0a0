"""Project: vectors of labels as points of a plane; run as a process of its own, so that queries do not wait.

    python -m mufin.serve.project VECTORS.npy POINTS.npy

Prints how far it is, as a share, one number a line.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float32]
MANY = 20_000  # labels; t-SNE of more takes minutes
STEPS = 750


def project(vectors: Points, told: Callable[[float], None] = lambda _: None) -> tuple[Points, str]:
    """Points (n, 2) within −1 … 1 and how they were found: t-SNE if scikit-learn is there, else PCA."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        TSNE = None
    plane = pca(vectors)
    if TSNE is None or not 10 <= len(vectors) <= MANY:
        return _fitted(plane), "PCA"
    perplexity = min(30.0, (len(vectors) - 1) / 4)
    start = plane / max(float(plane[:, 0].std()), 1e-9) * 1e-4
    with redirect_stdout(_Listener(told)):
        found = TSNE(
            2, perplexity=perplexity, metric="cosine", init=start, max_iter=STEPS, random_state=0, verbose=2,
            n_jobs=1,
        ).fit_transform(vectors)  # fmt: skip
    return _fitted(found), "t-SNE"


def pca(vectors: Points) -> Points:
    """The coordinates along the two directions of greatest variance."""
    centred = vectors - vectors.mean(0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, :-3:-1]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # an axis may point either way
    return np.asarray(centred @ (axes * signs), np.float32)


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


def main(source: str, target: str) -> None:
    """Read vectors, write points and how they were found."""
    os.nice(10)
    out = sys.stdout
    points, how = project(np.load(source), lambda share: print(f"{share:.3f}", file=out, flush=True))
    np.save(target, points)
    Path(target).with_suffix(".txt").write_text(how)


if __name__ == "__main__":
    main(*sys.argv[1:])
