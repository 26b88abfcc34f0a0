"""How fast is the search for 100 unique labels, and how much does the approximate one miss?

    python benchmarks/search.py                      # 20K, 60K and 200K labels
    python benchmarks/search.py 8000 30000 --entries 6

Made vectors: labels in nested groups (topics, sub-topics), each with several entries around its own place;
queries lie around labels. `brute force` is one NumPy product, a maximum a label and argpartition.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from mufin.retrieve.approximate import ApproximateIndex, label_recall
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex

K = 100
WIDTH = 192


def make(n_labels: int, per_label: int, n_queries: int) -> tuple[Entries, Tensor]:
    """Labels with per_label entries each, and queries near some of them."""
    generator = torch.Generator().manual_seed(0)

    def around(places: Tensor, spread: float) -> Tensor:
        noise = torch.randn(places.shape, generator=generator)
        return normalize(places + spread * normalize(noise, dim=1), dim=1)

    def pick(places: Tensor, n: int) -> Tensor:
        return places[torch.randint(len(places), (n,), generator=generator)]

    topics = around(torch.zeros(max(1, n_labels // 1000), WIDTH), 1.0)
    below = around(pick(topics, max(1, n_labels // 30)), 1.0)
    labels = around(pick(below, n_labels), 1.0)
    owner = torch.arange(n_labels).repeat_interleave(per_label)
    return Entries(around(labels[owner], 0.7), owner, n_labels), around(pick(labels, n_queries), 0.9)


def brute_force(entries: Entries, queries: Tensor, per_label: int) -> Tensor:
    """The labels by plain NumPy, every label having as many entries."""
    vectors, found = entries.vectors.numpy(), []
    for some in queries.numpy()[:, None]:  # one at a time, so that memory stays small
        scores = (some @ vectors.T).reshape(-1, per_label).max(1)
        best = np.argpartition(-scores, K)[:K]
        found.append(best[np.argsort(-scores[best])])
    return torch.from_numpy(np.stack(found))


def milliseconds(search: Callable[[Tensor], Tensor], batches: list[Tensor], repeats: int = 3) -> float:
    """The best time of a query, in ms."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for queries in batches:
            search(queries)
        times.append(time.perf_counter() - start)
    return 1000 * min(times) / sum(map(len, batches))


def compare(n_labels: int, per_label: int, n_queries: int) -> None:
    entries, queries = make(n_labels, per_label, n_queries)
    start = time.perf_counter()
    approximate = ApproximateIndex(entries)
    built = time.perf_counter() - start
    exact = ExactIndex(entries)
    truth = exact.search(queries, K).labels
    rows: list[tuple[str, Callable[[Tensor], Tensor], float]] = [
        ("brute force", lambda some: brute_force(entries, some, per_label), 0.0),
        ("exact", lambda some: exact.search(some, K).labels, 0.0),
        ("approximate", lambda some: approximate.search(some, K).labels, built),
    ]
    for name, search, seconds in rows:
        single = milliseconds(search, list(queries[:16].split(1)))
        batch = milliseconds(search, [queries])
        recall = label_recall(search(queries), truth)
        print(
            f"| {n_labels:,} | {len(entries):,} | {name} | {single:.2f} | {batch:.2f} | {recall:.4f} | "
            f"{seconds:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("labels", type=int, nargs="*", default=[20_000, 60_000, 200_000])
    parser.add_argument("--entries", type=int, default=1, help="entries a label")
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} thread(s), width {WIDTH}, k = {K}\n")
    print("| labels | entries | search | 1 query, ms | batch, ms a query | recall@100 | build, s |")
    print("|---|---|---|---|---|---|---|")
    for n_labels in options.labels:
        compare(n_labels, options.entries, options.queries)


if __name__ == "__main__":
    main()
