"""How fast is the search for 100 unique labels on a CPU, how much does it miss, and what do others need?

    python benchmarks/search.py                             # 10K, 100K and 303K labels
    python benchmarks/search.py 10K 303K 1M 4.5M --hnswlib

Vectors are made (`made_vectors.py`), 2 to 12 entries per label. hnswlib has the settings of the released
MUFIN; it compiles for a minute and builds for six at 303K. Results: OUT/search-cpu.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from made_vectors import exponent, made
from mufin.retrieve.approximate import ApproximateIndex, label_recall
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex

Row = dict[str, Any]
Search = Callable[[Tensor], Tensor]
K, TUNED, ASKED = 100, 256, 256


def measured(size: str, with_hnswlib: bool) -> Iterator[Row]:
    """Time every way to search a catalogue of this size, one query at a time and 64 together."""
    world = made(size, TUNED + ASKED)
    entries, queries = world.entries, world.queries[TUNED:]
    exact = ExactIndex(entries)
    truth = torch.cat([exact.search(part, K).labels for part in queries.split(64)])
    for name, search, built in ways(entries, world.queries[:TUNED], with_hnswlib):
        found = torch.cat([search(part) for part in queries[:64].split(1)])
        yield {
            "size": size, "labels": entries.n_labels, "entries": len(entries), "search": name,
            "ms per query": 1e3 * seconds(search, queries.split(1)),
            "ms per query, 64 together": 1e3 * seconds(search, queries.split(64)) / 64,
            "recall@100": label_recall(found, truth[:64]), "build s": built,
        }  # fmt: skip


def ways(entries: Entries, sample: Tensor, with_hnswlib: bool) -> Iterator[tuple[str, Search, float]]:
    """Ours, brute force, faiss HNSW and hnswlib: name, search, seconds to build."""
    start = time.perf_counter()
    index, exact = ApproximateIndex(entries, queries=sample), ExactIndex(entries)
    yield "mufin, approximate", lambda q: index.search(q, K).labels, time.perf_counter() - start
    yield "mufin, exact", lambda q: exact.search(q, K).labels, 0.0
    yield "brute force, NumPy", brute_force(entries), 0.0
    if len(entries) <= 250_000:
        yield hnsw_flat(entries)
    if with_hnswlib:
        yield released_hnswlib(entries)


def brute_force(entries: Entries) -> Search:
    """One product, the best entry of each label, argpartition."""
    vectors, owner = entries.vectors.numpy(), entries.labels.numpy()
    starts = np.flatnonzero(np.diff(owner, prepend=-1))

    def run(queries: Tensor) -> Tensor:
        best = np.maximum.reduceat(queries.numpy() @ vectors.T, starts, axis=1)  # (B, L)
        top = np.argpartition(-best, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(best, top, 1), axis=1)
        return torch.from_numpy(owner[starts[np.take_along_axis(top, order, 1)]])

    return run


def hnsw_flat(entries: Entries) -> tuple[str, Search, float]:
    """faiss HNSW over the entries, enough of them fetched for 100 labels."""
    import faiss

    start = time.perf_counter()
    index = faiss.IndexHNSWFlat(entries.vectors.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 100
    index.add(entries.vectors.numpy())
    owner = entries.labels.numpy()
    effort = faiss.SearchParametersHNSW(efSearch=600)

    def run(queries: Tensor) -> Tensor:
        found = index.search(queries.numpy(), 480, params=effort)[1]
        return torch.stack([unique_labels(row, owner) for row in found])

    return "faiss HNSW32-flat, efSearch 600, 480 entries", run, time.perf_counter() - start


def unique_labels(found: np.ndarray, owner: np.ndarray) -> Tensor:
    """The first K labels of entries in their order, −1 where there are fewer."""
    labels = owner[found[found >= 0]]
    _, first = np.unique(labels, return_index=True)
    chosen = labels[np.sort(first)[:K]]
    return torch.from_numpy(np.pad(chosen, (0, K - len(chosen)), constant_values=-1))


def released_hnswlib(entries: Entries) -> tuple[str, Search, float]:
    """One vector per label, N(Σ its entries), M = 100, ef = 300."""
    import hnswlib

    sums = torch.zeros(entries.n_labels, entries.vectors.shape[1])
    sums.index_add_(0, entries.labels, entries.vectors)
    start = time.perf_counter()
    index = hnswlib.Index("cosine", sums.shape[1])
    index.init_index(len(sums), M=100, ef_construction=300)
    index.add_items(sums.numpy())
    index.set_ef(300)
    index.set_num_threads(1)
    built = time.perf_counter() - start

    def run(queries: Tensor) -> Tensor:
        return torch.from_numpy(index.knn_query(queries.numpy(), K)[0].astype(np.int64))

    return "hnswlib, one vector per label, M 100, ef 300", run, built


def seconds(run: Callable[[Tensor], Any], given: Sequence[Tensor], at_least: float = 2.0) -> float:
    """The median time of a call."""
    run(given[0])
    times: list[float] = []
    while len(times) < 3 or (sum(times) < at_least and len(times) < 200):
        start = time.perf_counter()
        run(given[len(times) % len(given)])
        times.append(time.perf_counter() - start)
    return median(times)


def page(rows: Sequence[Row], growth: float | None) -> str:
    """The table, with the exponent of our search time over the number of labels."""
    facts = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}."
    parts = ["# Search on a CPU", f"Made by `benchmarks/search.py`; medians. {facts}", table(rows)]
    if growth is not None:
        parts.append(f"One query by mufin's approximate search takes time ∝ labels^{growth:.2f}.")
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [[_shown(value) for value in row.values()] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", default=["10K", "100K", "303K"])
    parser.add_argument(
        "--hnswlib", action="store_true", help="also measure hnswlib, which must be installed"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows: list[Row] = []
    for size in options.sizes:
        for row in measured(size, options.hnswlib):
            print(row, flush=True)
            rows.append(row)
    ours = [row for row in rows if row["search"] == "mufin, approximate"]
    growth = (
        exponent([r["labels"] for r in ours], [r["ms per query"] for r in ours]) if len(ours) > 2 else None
    )
    (options.out / "search-cpu.json").write_text(json.dumps(rows, indent=1))
    (options.out / "search-cpu.md").write_text(page(rows, growth))


if __name__ == "__main__":
    main()
