"""Measure load time and memory of a catalogue with 5 M text-only labels and 10 M relevance pairs.

    python benchmarks/catalogue_memory.py [--labels 5000000] [--pairs 10000000]

Writes one to a temporary folder as Parquet and as JSONL, reads each in a separate process, and prints the
load time and the peak resident memory. The target is 2 GB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from mufin.data.catalogue import Catalogue
from mufin.data.formats import jsonl, parquet
from mufin.data.formats.schema import lists

WORDS = ["oak", "desk", "lamp", "chair", "red", "blue", "steel", "garden", "kids", "shoes", "for", "me"]
SLICE_ROWS = 100_000


def label_slices(count: int, rng: np.random.Generator) -> list[pa.Table]:
    """Labels L0, L1, …, each with four words and a number as its text."""
    tables = []
    for start in range(0, count, SLICE_ROWS):
        numbers = range(start, min(start + SLICE_ROWS, count))
        picks = rng.integers(len(WORDS), size=(len(numbers), 4))
        texts = [[" ".join(WORDS[j] for j in pick) + f" {i}"] for i, pick in zip(numbers, picks, strict=True)]
        tables.append(pa.table({"id": [f"L{i}" for i in numbers], "texts": texts}))
    return tables


def train_slices(points: int, pairs: int, labels: int, rng: np.random.Generator) -> list[pa.Table]:
    """Points with the same number of random labels each."""
    per_point = pairs // points
    tables = []
    for start in range(0, points, SLICE_ROWS):
        ids = [f"p{i}" for i in range(start, min(start + SLICE_ROWS, points))]
        names = pa.array([f"L{i}" for i in rng.integers(labels, size=len(ids) * per_point)])
        tables.append(pa.table({"id": ids, "labels": lists(np.arange(len(ids) + 1) * per_point, names)}))
    return tables


def make(folder: Path, suffix: str, tables: dict[str, list[pa.Table]]) -> None:
    """Write the tables as one catalogue."""
    folder.mkdir()
    for name, slices in tables.items():
        path = folder / f"{name}.{suffix}"
        if suffix == "parquet":
            parquet.write(slices, path)
        else:
            jsonl.write((row for table in slices for row in jsonl.rows(table)), path)


def read(folder: Path) -> dict[str, float]:
    """Load everything; return the time and the peak resident memory in MB before and after."""
    before = peak_mb()
    start = time.perf_counter()
    catalogue = Catalogue.read(folder)
    split = catalogue.split("train")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak": peak_mb(), "before": before, "pairs": split.relevance.nnz}


def peak_mb() -> float:
    """Peak resident memory of this process (VmHWM), in MB of 10⁶ bytes."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def main() -> None:
    """Write, read in a separate process, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--labels", type=int, default=5_000_000)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        print(json.dumps(read(args.read)))
        return
    rng = np.random.default_rng(0)
    items = [pa.table({"id": [f"p{i}" for i in range(args.points)], "title": ["a thing"] * args.points})]
    train = train_slices(args.points, args.pairs, args.labels, rng)
    tables = {"items": items, "labels": label_slices(args.labels, rng), "train": train}
    print(f"{args.labels:,} labels, {args.pairs:,} pairs, {args.points:,} points")
    print(f"{'format':8} {'on disk':>9} {'load':>8} {'peak':>9}")
    with tempfile.TemporaryDirectory() as temporary:
        for suffix in ("parquet", "jsonl"):
            folder = Path(temporary) / suffix
            make(folder, suffix, tables)
            size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
            command = [sys.executable, __file__, "--read", str(folder)]
            got = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(
                f"{suffix:8} {size:6.0f} MB {got['seconds']:6.1f} s {got['peak']:6.0f} MB"
                f"  (of which {got['before']:.0f} MB before reading)"
            )


if __name__ == "__main__":
    main()
