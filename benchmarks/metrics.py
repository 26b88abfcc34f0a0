"""How fast are the metrics beside napkinXC's? Prints one table, both measured in this run.

python benchmarks/metrics.py [points] [labels] [k]

napkinXC gets lists, its fastest input. Each of its metrics finds the hits again; ours are found once by
`judge`, so every row of ours is shown with that time added, and the last row adds up what each library needs
for all of them.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from napkinxc import metrics as napkin
from scipy.sparse import csr_matrix

from mufin import metrics
from mufin.metrics import FloatArray, IntArray


def make_case(n: int, labels: int, k: int) -> tuple[IntArray, csr_matrix]:
    """About 8 relevant labels a point with a long tail; about a third of the predicted labels are hits."""
    rng = np.random.default_rng(0)
    ends = np.concatenate([[0], np.cumsum(rng.integers(1, 16, n))])
    columns = (labels * rng.random(ends[-1]) ** 2).astype(np.int64)
    truth = csr_matrix((np.ones(ends[-1], bool), columns, ends), shape=(n, labels))
    truth.sum_duplicates()
    predicted = rng.integers(0, labels, (n, k))
    for row in range(n):
        relevant = truth.indices[truth.indptr[row] : truth.indptr[row + 1]]
        places = rng.permutation(k)[: min(len(relevant), k // 3)]
        predicted[row, places] = relevant[: len(places)]
    return predicted, truth


def timed(function: Callable[[], FloatArray], repeats: int) -> tuple[float, FloatArray]:
    """Best time in seconds, and the result."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def main(n: int = 100_000, labels: int = 100_000, k: int = 10) -> None:
    predicted, truth = make_case(n, labels, k)
    q = metrics.propensities(truth)
    ranking, relevant = (
        predicted.tolist(),
        [row.tolist() for row in np.split(truth.indices, truth.indptr[1:-1])],
    )
    judging, _ = timed(lambda: metrics.judge(predicted, truth).truth.data, 3)
    judged = metrics.judge(predicted, truth)
    pairs: dict[str, tuple[Callable[[], FloatArray], Callable[[], FloatArray]]] = {
        "P": (lambda: metrics.precision(judged, k), lambda: napkin.precision_at_k(relevant, ranking, k=k)),
        "nDCG": (lambda: metrics.ndcg(judged, k), lambda: napkin.ndcg_at_k(relevant, ranking, k=k)),
        "R": (lambda: metrics.recall(judged, k), lambda: napkin.recall_at_k(relevant, ranking, k=k)),
        "PSP": (
            lambda: metrics.psp(judged, q, k),
            lambda: napkin.psprecision_at_k(relevant, ranking, q, k=k),
        ),
        "PSnDCG": (
            lambda: metrics.psndcg(judged, q, k),
            lambda: napkin.psndcg_at_k(relevant, ranking, q, k=k),
        ),
        "coverage": (
            lambda: metrics.coverage(judged, k),
            lambda: napkin.coverage_at_k(relevant, ranking, k=k),
        ),
    }
    print(
        f"{n:,} points × {labels:,} labels × k = {k}, {truth.nnz:,} relevant pairs; judge {judging:.3f} s\n"
    )
    print("| metric | mufin (s) | napkinXC (s) | ratio | largest difference |\n|---|---|---|---|---|")
    ours_total, theirs_total = judging, 0.0
    for name, (ours, theirs) in pairs.items():
        (fast, value), (slow, reference) = timed(ours, 3), timed(theirs, 1)
        ours_total, theirs_total = ours_total + fast, theirs_total + slow
        alone, gap = judging + fast, abs(value - reference).max()
        print(f"| {name}@1…{k} | {alone:.3f} | {slow:.2f} | {slow / alone:.0f}× | {gap:.0e} |")
    print(f"| all | {ours_total:.3f} | {theirs_total:.2f} | {theirs_total / ours_total:.0f}× | |")
    tracemalloc.start()
    metrics.evaluate(predicted, truth, q)
    print(f"\npeak memory of evaluate beyond its inputs: {tracemalloc.get_traced_memory()[1] / 1e6:.0f} MB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
