"""Groups: labels by category, or in clusters that are named by their most typical words."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
MOST = 12  # colours that people can tell apart
ROUNDS, RUNS = 25, 4  # of k-means
SHORT = 3  # letters; shorter words say little


def by_category(categories: Sequence[str | None]) -> tuple[Ints, list[str]]:
    """The number of each label's group and the groups' names, the largest first; few ones are "other".

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
    """k-means over unit vectors, clusters in order of size, each named by its typical words."""
    count = min(MOST, max(1, round((len(vectors) / 2) ** 0.5)))
    numbers = _clusters(vectors, count)
    order = np.argsort(-np.bincount(numbers, minlength=count), kind="stable")
    numbers = np.argsort(order)[numbers]
    count = int(numbers.max()) + 1
    means = np.stack([vectors[numbers == group].mean(0) for group in range(count)])
    return numbers, typical_words(texts, numbers, (vectors * means[numbers]).sum(1))


def typical_words(texts: Sequence[str], numbers: Ints, typical: Floats, shown: int = 2) -> list[str]:
    """For each group the words of its most typical labels that other groups do not have.

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
        # how typical its labels are, times the share of the word that lies in this group
        words_here = [word for word in here if len(word) >= SHORT and not word.isdigit()]
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
