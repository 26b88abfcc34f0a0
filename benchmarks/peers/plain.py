"""The two baselines of the library."""

from __future__ import annotations

import numpy as np

from mufin import Catalogue
from mufin.evaluate.baselines import popularity, tfidf_neighbours
from mufin.evaluate.score import DEPTH
from peers.common import texts_of


def popular(catalogue: Catalogue, seed: int) -> np.ndarray:
    """The most frequent labels, the same for every point."""
    test = catalogue.split("test")
    return popularity(catalogue.split("train").relevance, len(test), DEPTH, test.exclude)


def neighbours(catalogue: Catalogue, seed: int, neighbours: int) -> np.ndarray:
    """The labels of the nearest training texts."""
    train, test = catalogue.split("train"), catalogue.split("test")
    texts = [texts_of(catalogue, split) for split in (train, test)]
    return tfidf_neighbours(texts[0], train.relevance, texts[1], DEPTH, neighbours, test.exclude)
