"""napkinXC (Jasinska-Kobus et al., 2020) on TF-IDF: a probabilistic label tree, and one-vs-rest."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np

from mufin import Catalogue
from mufin.evaluate.score import DEPTH
from peers.common import allowed, extra, tfidf


def plt(catalogue: Catalogue, seed: int, **settings: Any) -> np.ndarray:
    """A tree of logistic regressions over labels clustered by their training texts."""
    from napkinxc.models import PLT

    return _fit_and_rank(PLT, catalogue, seed=seed, **settings)


def one_vs_rest(catalogue: Catalogue, seed: int, **settings: Any) -> np.ndarray:
    """One logistic regression a label."""
    from napkinxc.models import OVR

    return _fit_and_rank(OVR, catalogue, seed=seed, **settings)


def _fit_and_rank(kind: Any, catalogue: Catalogue, **settings: Any) -> np.ndarray:
    train, test = catalogue.split("train"), catalogue.split("test")
    points, queries = tfidf(catalogue)
    labelled = np.flatnonzero(np.diff(train.relevance.indptr))  # it cannot read a point without labels
    relation = train.relevance[labelled]
    labels = [row.tolist() for row in np.split(relation.indices, relation.indptr[1:-1])]
    with tempfile.TemporaryDirectory() as folder:
        model = kind(folder, threads=os.cpu_count(), verbose=0, **settings)
        model.fit(points[labelled], labels)
        ranked = model.predict(queries, top_k=DEPTH + extra(test.exclude))
    return allowed(ranked, test.exclude)
