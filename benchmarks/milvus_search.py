"""How much does search in Milvus miss, and how long does it take, beside mufin's own search on a CPU?

    python benchmarks/milvus_search.py                # 10K and 100K labels, milvus-lite in this process
    python benchmarks/milvus_search.py 100K --uri http://127.0.0.1:19530

Vectors are made (`made_vectors.py`), 2 to 12 entries per label. Recall@100 is of unique labels against exact
search; a fifth of the labels is filtered out in one row. Results: OUT/search-milvus.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from made_vectors import made
from mufin.retrieve.approximate import ApproximateIndex, label_recall
from mufin.retrieve.build import Index
from mufin.retrieve.collection import connect
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.milvus import MilvusIndex
from search import seconds, table

Row = dict[str, Any]
K, TUNED, ASKED = 100, 256, 64


def measured(size: str, uri: str) -> Iterator[Row]:
    """Time one query and 64 together, and count what is missed."""
    world = made(size, TUNED + ASKED)
    entries, queries = world.entries, world.queries[TUNED:]
    allowed = torch.arange(entries.n_labels) % 5 > 0
    exact = ExactIndex(entries)
    truth, few = (exact.search(queries, K, None, mask).labels for mask in (None, allowed))
    for name, build in ways(uri).items():
        start = time.perf_counter()
        index = build(entries, world.queries[:TUNED])
        built = time.perf_counter() - start
        yield {
            "size": size, "labels": entries.n_labels, "entries": len(entries), "search": name,
            "ms per query": 1e3 * seconds(lambda q, i=index: i.search(q, K), queries.split(1)),
            "ms per query, 64 together": 1e3 * seconds(lambda q, i=index: i.search(q, K), [queries]) / ASKED,
            "recall@100": label_recall(index.search(queries, K).labels, truth),
            "recall@100, filtered": label_recall(index.search(queries, K, None, allowed).labels, few),
            "build s": built,
        }  # fmt: skip
        if isinstance(index, MilvusIndex):
            connect(uri).drop_collection(index.collection.name)


def ways(uri: str) -> dict[str, Callable[[Entries, Tensor], Index]]:
    return {
        "Milvus": lambda entries, _: MilvusIndex.create(uri, "benchmark", entries),
        "mufin, approximate": lambda entries, sample: ApproximateIndex(entries, queries=sample),
    }


def page(rows: list[Row]) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("pymilvus", "milvus-lite"))
    facts = f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {versions}."
    return f"# Search in Milvus\n\nMade by `benchmarks/milvus_search.py`; medians. {facts}\n\n{table(rows)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", default=["10K", "100K"])
    parser.add_argument("--uri", help="a server; else milvus-lite in this process")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        uri = options.uri or f"{folder}/benchmark.db"
        for size in options.sizes:
            for row in measured(size, uri):
                print(row, flush=True)
                rows.append(row)
    rows.sort(key=lambda row: row["labels"])
    (options.out / "search-milvus.json").write_text(json.dumps(rows, indent=1))
    (options.out / "search-milvus.md").write_text(page(rows))


if __name__ == "__main__":
    main()
