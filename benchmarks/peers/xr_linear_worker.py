"""Train XR-Linear and predict; runs in the environment of PECOS, without mufin.

    python xr_linear_worker.py FOLDER

Reads points.npz, relevance.npz, queries.npz and settings.json from FOLDER and writes labels.npy there.
"""

import json
import sys
from pathlib import Path

import numpy as np
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
from scipy.sparse import load_npz
from sklearn.preprocessing import normalize


def main(folder):
    settings = json.loads((folder / "settings.json").read_text())
    points, queries = (
        normalize(load_npz(folder / f"{name}.npz").tocsr().astype(np.float32))
        for name in ("points", "queries")
    )
    relevance = load_npz(folder / "relevance.npz").tocsr()
    threads = settings["threads"]
    tree = Indexer.gen(
        LabelEmbeddingFactory.create(relevance, points, method="pifa"),
        indexer_type="hierarchicalkmeans",
        max_leaf_size=settings["leaf"],
        seed=settings["seed"],
        threads=threads,
    )
    model = XLinearModel.train(points, relevance, C=tree, Cp=settings["c"], Cn=settings["c"], threads=threads)
    scores = model.predict(queries, beam_size=settings["beam"], only_topk=settings["k"], threads=threads)
    labels = np.full((scores.shape[0], settings["k"]), -1, np.int64)
    for row in range(scores.shape[0]):
        start, end = scores.indptr[row], scores.indptr[row + 1]
        best = np.argsort(-scores.data[start:end], kind="stable")
        labels[row, : end - start] = scores.indices[start:end][best]
    np.save(folder / "labels.npy", labels)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
