"""How large can a catalogue get? Predict latency, memory and cost from measured searches.

    python benchmarks/scale.py [--price 4.0] [--out benchmarks/results]

Reads search-h200.json and search-cpu.json, and writes scale.md. The model of a search on a GPU is a + b ×
entries per batch; on a CPU it is a × labels^b. Both are fitted without one measured size, which is then
predicted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speed import table

RESULTS = Path(__file__).parent / "results"
HELD_BACK = {"gpu": 1_000_000, "cpu": 100_000}  # labels
DIM, ENTRIES, K, BATCH = 192, 2, 100, 512  # entries per label; labels in a shortlist
GPU_BYTES = 0.85 * 141e9  # of one H200; the rest is for batches
NETWORK = 400e9 / 8  # bytes per second between machines
ROUND_TRIP = 0.05  # ms between machines in one data centre
SIZES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
Row = dict[str, Any]


@dataclass(frozen=True)
class Check:
    """A fitted model, and how well it predicts the size that it has not seen."""

    name: str
    predict: Callable[[float], float]
    labels: int
    size: int  # what the model reads: entries or labels
    measured: float

    @property
    def row(self) -> Row:
        found = self.predict(self.size)
        error = f"{100 * (found / self.measured - 1):+.1f} %"
        return {
            "search": self.name, "held back": f"{self.labels:,} labels", "measured ms": self.measured,
            "predicted ms": found, "error": error,
        }  # fmt: skip


def straight(x: Sequence[float], y: Sequence[float]) -> Callable[[float], float]:
    """Fit y = a + b x with the smallest relative errors."""
    weight = 1 / np.array(y)
    design = np.stack([np.ones(len(x)), np.array(x)], 1) * weight[:, None]
    a, b = np.linalg.lstsq(design, np.ones(len(x)), rcond=None)[0]
    return lambda size: float(a + b * size)


def power(x: Sequence[float], y: Sequence[float]) -> Callable[[float], float]:
    """Fit y = a x^b."""
    b, a = np.polyfit(np.log(x), np.log(y), 1)
    return lambda size: float(math.exp(a) * size**b)


def gpu(rows: Sequence[Row], batch: int) -> Check:
    """Fit the time of a batch on a GPU by entries."""
    own = [row for row in rows if row["batch"] == batch]
    seen = [row for row in own if row["labels"] != HELD_BACK["gpu"]]
    (left,) = (row for row in own if row["labels"] == HELD_BACK["gpu"])
    predict = straight([row["entries"] for row in seen], [row["ms"] for row in seen])
    return Check(f"H200, exact, {batch} together", predict, left["labels"], left["entries"], left["ms"])


def cpu(rows: Sequence[Row]) -> Check:
    """Fit the time of one approximate search on a CPU by labels."""
    own = [row for row in rows if row["search"] == "mufin, approximate"]
    seen = [row for row in own if row["labels"] != HELD_BACK["cpu"]]
    (left,) = (row for row in own if row["labels"] == HELD_BACK["cpu"])
    predict = power([row["labels"] for row in seen], [row["ms per query"] for row in seen])
    name, labels = "2 CPU cores, approximate, one query", left["labels"]
    return Check(name, predict, labels, labels, left["ms per query"])


def label_bytes() -> int:
    """Return bytes per label on a GPU: entries in f32 and f16, bag and classifier in f16, centroid in f32."""
    return ENTRIES * (6 * DIM + 8) + 2 * 2 * DIM + 4 * DIM + 24


def sharded(labels: int, search: Callable[[float], float], price: float) -> Row:
    """Predict a search over labels that are spread over GPUs; every GPU answers every query."""
    gpus = math.ceil(labels * label_bytes() / GPU_BYTES)
    scan = search(labels * ENTRIES / gpus)
    answers = gpus * BATCH * K * 12  # a row number and a similarity
    merge = 0.0 if gpus == 1 else ROUND_TRIP + 1e3 * answers / NETWORK
    seconds = (scan + merge) / 1e3
    return {
        "labels": f"{labels:,}",
        "memory GB": labels * label_bytes() / 1e9,
        "GPUs": gpus,
        f"scan ms, {BATCH} together": scan,
        "network MB": answers / 1e6 if gpus > 1 else 0.0,
        "network ms": merge,
        "queries/s": BATCH / seconds,
        "$ per million queries": gpus * price / 3600 * 1e6 / (BATCH / seconds),
    }


def page(checks: Sequence[Check], rows: Sequence[Row], price: float) -> str:
    """Everything as Markdown."""
    return "\n\n".join(
        [
            "# Scale",
            "Made by `benchmarks/scale.py` from measured searches; see [docs/scale.md](../../docs/scale.md).",
            "## Is the model right?",
            "Each model is fitted without the size that it predicts here.",
            table([check.row for check in checks]),
            "## Search on H200s, predicted",
            f"D = {DIM}, {ENTRIES} entries per label, {price:.2f} $ per GPU and hour.",
            table(rows),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--price", type=float, default=4.0, help="dollars per GPU and hour")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    on_gpu = json.loads((RESULTS / "search-h200.json").read_text())["search"]
    on_cpu = json.loads((RESULTS / "search-cpu.json").read_text())
    one, many = gpu(on_gpu, 1), gpu(on_gpu, BATCH)
    checks = [one, gpu(on_gpu, 64), many, cpu(on_cpu)]
    rows = [sharded(labels, many.predict, options.price) for labels in SIZES]
    text = page(checks, rows, options.price) + "\n"
    (options.out / "scale.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
