"""Compare the speed of our metrics with napkinXC's, both measured in the same run.

    python benchmarks/metrics.py [points] [labels] [k]

napkinXC gets lists, its fastest input. Each of its metrics searches for the hits again; ours share one call
of `find_relevant`, whose time is added to each of our rows. The last row is the total for all metrics.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from napkinxc import metrics as napkin
from scipy.sparse import csr_matrix

from mufin.evaluate import metrics
from mufin.evaluate.per_point import FloatArray, IntArray


def make_case(n: int, labels: int, k: int) -> tuple[IntArray, csr_matrix]:
    """About 8 relevant labels per point with a long tail; about a third of the predictions are hits."""
    rng = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(rng.integers(1, 16, n))])
    columns = (labels * rng.random(ends[-1]) ** 2).astype(np.int64)
    truth = csr_matrix((np.ones(ends[-1], bool), columns, ends), shape=(n, labels))
    truth.sum_duplicates()
    predicted = rng.integers(0, labels, (n, k))
    for row in range(n):
        relevant = truth.indices[truth.indptr[row] : truth.indptr[row + 1]]
        ranks = rng.permutation(k)[: min(len(relevant), k // 3)]
        predicted[row, ranks] = relevant[: len(ranks)]
    return predicted, truth


def timed(function: Callable[[], FloatArray], repeats: int) -> tuple[float, FloatArray]:
    """The best time in seconds and the result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def compare(n: int, labels: int, k: int) -> list[dict[str, Any]]:
    """Time per metric and in total, and the largest difference; ours includes `find_relevant`."""
    predicted, truth = make_case(n, labels, k)
    q = metrics.propensities(truth)
    ranking, relevant = (
        predicted.tolist(),
        [row.tolist() for row in np.split(truth.indices, truth.indptr[1:-1])],
    )
    search, _ = timed(lambda: metrics.find_relevant(predicted, truth).truth.data, 3)
    hits = metrics.find_relevant(predicted, truth)
    pairs: dict[str, tuple[Callable[[], FloatArray], Callable[[], FloatArray]]] = {
        "P": (lambda: metrics.precision(hits, k), lambda: napkin.precision_at_k(relevant, ranking, k=k)),
        "nDCG": (lambda: metrics.ndcg(hits, k), lambda: napkin.ndcg_at_k(relevant, ranking, k=k)),
        "R": (lambda: metrics.recall(hits, k), lambda: napkin.recall_at_k(relevant, ranking, k=k)),
        "PSP": (
            lambda: metrics.psp(hits, q, k),
            lambda: napkin.psprecision_at_k(relevant, ranking, q, k=k),
        ),
        "PSnDCG": (
            lambda: metrics.psndcg(hits, q, k),
            lambda: napkin.psndcg_at_k(relevant, ranking, q, k=k),
        ),
        "coverage": (
            lambda: metrics.coverage(hits, k),
            lambda: napkin.coverage_at_k(relevant, ranking, k=k),
        ),
    }
    rows: list[dict[str, Any]] = []
    for name, (ours, theirs) in pairs.items():
        (fast, value), (slow, reference) = timed(ours, 3), timed(theirs, 1)
        gap = float(abs(value - reference).max())
        rows.append({"metric": name, "mufin s": search + fast, "napkinXC s": slow, "largest difference": gap})
    fast = sum(row["mufin s"] for row in rows) - (len(rows) - 1) * search
    slow = sum(row["napkinXC s"] for row in rows)
    return [*rows, {"metric": "all", "mufin s": fast, "napkinXC s": slow, "largest difference": None}]


def main(n: int = 100_000, labels: int = 100_000, k: int = 10) -> None:
    print(f"{n:,} points × {labels:,} labels × k = {k}\n")
    print("| metric | mufin (s) | napkinXC (s) | ratio | largest difference |\n|---|---|---|---|---|")
    for row in compare(n, labels, k):
        ours, theirs, gap = row["mufin s"], row["napkinXC s"], row["largest difference"]
        shown = "" if gap is None else f"{gap:.0e}"
        print(f"| {row['metric']}@1…{k} | {ours:.3f} | {theirs:.2f} | {theirs / ours:.0f}× | {shown} |")
    predicted, truth = make_case(n, labels, k)
    tracemalloc.start()
    metrics.evaluate(predicted, truth, metrics.propensities(truth))
    print(f"\npeak memory of evaluate beyond its inputs: {tracemalloc.get_traced_memory()[1] / 1e6:.0f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
