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
ENDING = 3  # letters by which forms of one word differ
# Words that say nothing of a group, in the languages of many catalogues.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        about all also and any are because been but can did does each else for from get had has have her his
        how into its just like may more most much new non nor not now off one only other our out over own per
        set she some such than that the their them then there these they this those three too two under until
        upon very via was were what when where which while who why will with within without you your
        auf aus bei das dem den der des die ein eine einem einen einer eines für mit nach nicht oder sich und
        von vom zum zur aux avec ces dans est les mais nos ont par pas plus pour que qui sans ses son sont sur
        une con del desde las los más para pero por sin sobre una uno unos alla alle che dalla degli dei della
        delle gli nel nella più sono een het met van voor com dos das uma
        """,
    )
)


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


def by_cluster(vectors: Floats, texts: Sequence[str], frequency: Ints) -> tuple[Ints, list[str]]:
    """Cluster unit vectors; return the cluster of each, the largest first, and names from typical words.

    In naming, the weight of a label is how much nearer it is to its own cluster than to the others, times the
    logarithm of its training points.
    """
    count = min(MOST, max(1, round((len(vectors) / 2) ** 0.5)))
    numbers = _clusters(vectors, count)
    order = np.argsort(-np.bincount(numbers, minlength=count), kind="stable")
    numbers = np.argsort(order)[numbers]
    count = int(numbers.max()) + 1
    means = np.stack([vectors[numbers == group].mean(0) for group in range(count)])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)
    alike = vectors @ means.T  # (L, groups)
    own = alike[np.arange(len(vectors)), numbers]
    others = (alike.sum(1) - own) / max(count - 1, 1)
    return numbers, typical_words(texts, numbers, np.maximum(own - others, 1e-3) * np.log1p(1 + frequency))


def typical_words(texts: Sequence[str], numbers: Ints, typical: Floats, shown: int = 2) -> list[str]:
    """Name each group by words that are frequent in its most typical labels and rare in other groups.

    >>> typical_words(
    ...     ["oak desk", "desk for two", "red shoe"], np.array([0, 0, 1]), np.array([0.9, 0.8, 1.0])
    ... )
    ['desk, oak', 'red, shoe']
    """
    count = int(numbers.max()) + 1
    words = [{word for word in re.findall(r"\w+", text.lower()) if _may_name(word)} for text in texts]
    everywhere = Counter(word for some in words for word in some)
    names: list[str] = []
    for group in range(count):
        members = np.flatnonzero(numbers == group)
        here: Counter[str] = Counter()
        weight: dict[str, float] = defaultdict(float)
        for i in members:
            here.update(words[i])
            for word in words[i]:
                weight[word] += float(typical[i])
        others = max(len(texts) - len(members), 1)
        rated = {}
        for word, times in here.items():
            inside, outside = times / len(members), (everywhere[word] - times) / others
            rated[word] = weight[word] * (inside / (inside + outside)) ** 2
        name = ", ".join(_distinct(sorted(rated, key=lambda word: (-rated[word], word)), shown))
        name = name or f"group {group + 1}"
        names.append(name if name not in names else f"{name} ({group + 1})")
    return names


def _may_name(word: str) -> bool:
    return len(word) >= SHORTEST and not word.isdigit() and word not in STOP_WORDS


def _distinct(words: Sequence[str], shown: int) -> list[str]:
    """Return the first words, without other forms of an earlier one.

    >>> _distinct(["desk", "desks", "oak"], 2)
    ['desk', 'oak']
    """
    kept: list[str] = []
    for word in words:
        if len(kept) == shown:
            break
        if not any(_alike(word, other) for other in kept):
            kept.append(word)
    return kept


def _alike(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    same_stem = long.startswith(short[: max(SHORTEST, len(short) - 1)]) and len(long) - len(short) <= ENDING
    return same_stem or (len(short) > ENDING and long.startswith(short))


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
    os.nice(5)
    out = sys.stdout
    points, how = project_2d(np.load(source), lambda share: print(f"{share:.3f}", file=out, flush=True))
    np.save(target, points)
    Path(target).with_suffix(".txt").write_text(how)


if __name__ == "__main__":
    main(*sys.argv[1:])
