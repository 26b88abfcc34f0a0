"""Lay out the map of labels: places in the plane, and groups with names.

    python -m mufin.serve.layout VECTORS.npy POINTS.npy

computes the places in a process of its own, so that queries do not wait, and prints its progress.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mufin.retrieve.project_2d import project_2d

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
MOST = 12  # groups: as many colours as people can tell apart
ROUNDS, RUNS = 25, 4  # of k-means
SHORTEST = 3  # letters of a word that may name a group


def by_category(categories: Sequence[str | None]) -> tuple[Ints, list[str]]:
    """Return the group of each label and the names of the groups, the largest first; small ones are "other".

    >>> numbers, names = by_category(["chair", None, "chair"])
    >>> numbers.tolist(), names
    ([0, 1, 0], ['chair', 'other'])
    """
    counts = Counter(name for name in categories if name)
    names = [name for name, _ in counts.most_common(MOST - 1)]
    number = {name: i for i, name in enumerate(names)}
    found = np.array([number.get(name or "", len(names)) for name in categories], np.int64)
    return found, names + ["other"] * bool((found == len(names)).any())


def by_cluster(vectors: Floats, texts: Sequence[str]) -> tuple[Ints, list[str]]:
    """Cluster unit vectors; return the cluster of each, the largest first, and names from typical words."""
    count = min(MOST, max(1, round((len(vectors) / 2) ** 0.5)))
    numbers = _clusters(vectors, count)
    order = np.argsort(-np.bincount(numbers, minlength=count), kind="stable")
    numbers = np.argsort(order)[numbers]
    count = int(numbers.max()) + 1
    means = np.stack([vectors[numbers == group].mean(0) for group in range(count)])
    return numbers, typical_words(texts, numbers, (vectors * means[numbers]).sum(1))


def typical_words(texts: Sequence[str], numbers: Ints, typical: Floats, shown: int = 2) -> list[str]:
    """Name each group by words of its most typical labels that other groups do not have.

    >>> typical_words(["oak desk", "desk lamp", "red shoe"], np.array([0, 0, 1]), np.array([0.9, 0.8, 1.0]))
    ['desk, oak', 'red, shoe']
    """
    count = int(numbers.max()) + 1
    words = [{*re.findall(r"\w+", text.lower())} for text in texts]
    everywhere = Counter(word for some in words for word in some)
    names: list[str] = []
    for group in range(count):
        here: Counter[str] = Counter()
        weight: dict[str, float] = defaultdict(float)
        for i in np.flatnonzero(numbers == group):
            here.update(words[i])
            for word in words[i]:
                weight[word] += float(typical[i])
        # How typical the labels with a word are, times the share of the word's labels in this group.
        words_here = [word for word in here if len(word) >= SHORTEST and not word.isdigit()]
        rated = {word: weight[word] * here[word] / everywhere[word] for word in words_here}
        best = sorted(rated, key=lambda word: (-rated[word], word))[:shown]
        name = ", ".join(best) or f"group {group + 1}"
        names.append(name if name not in names else f"{name} ({group + 1})")
    return names


def _clusters(vectors: Floats, count: int) -> Ints:
    """Assign unit vectors to clusters by spherical k-means, the best of a few runs on a sample."""
    import faiss

    means = faiss.Kmeans(
        vectors.shape[1], count, niter=ROUNDS, nredo=RUNS, spherical=True, seed=0, min_points_per_centroid=1
    )
    means.train(vectors)
    return np.asarray(means.assign(vectors)[1], np.int64)


def main(source: str, target: str) -> None:
    """Read vectors, write their places and the method."""
    os.nice(10)
    out = sys.stdout
    points, how = project_2d(np.load(source), lambda share: print(f"{share:.3f}", file=out, flush=True))
    np.save(target, points)
    Path(target).with_suffix(".txt").write_text(how)


if __name__ == "__main__":
    main(*sys.argv[1:])
