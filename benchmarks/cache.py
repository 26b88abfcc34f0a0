"""Measure how long it takes to read and check cached features.

    python benchmarks/cache.py [--descriptors 50000]

Prints wall and CPU time to read all features, and wall time for a hundred of them; best of five. The files
are in the page cache by then, since reading from disk would hide the cost of checking.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mufin.data.ragged import Ragged, offsets_of
from mufin.encode.cache import FeatureCache

WIDTHS = {384: "texts of `fast`", 1280: "images of `fast`", 6072: "images of `best`"}


def best_of_five(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time in seconds."""
    times = []
    for _ in range(5):
        start, cpu = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    return min(wall for wall, _ in times), min(cpu for _, cpu in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--descriptors", type=int, default=50_000)
    n = parser.parse_args().descriptors
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 1 << 63, n, dtype=np.uint64))
    first = np.sort(rng.choice(keys, len(keys) // 2, replace=False))  # as if the catalogue had grown once
    print("| features | MB | all, s | CPU, s | 100 of them, ms |\n|---|---|---|---|---|")
    for width, name in WIDTHS.items():
        values = rng.standard_normal((256, width), dtype=np.float32)

        def prepare(items: Sequence[object], values: np.ndarray = values) -> Ragged:
            count = len(items)
            return Ragged(np.resize(values, (count, values.shape[1])), offsets_of(np.ones(count)))

        with tempfile.TemporaryDirectory() as folder:
            cache = FeatureCache("benchmark", Path(folder))
            for written in (first, keys):
                cache.features(written, range(len(written)), prepare)
            wall, cpu = best_of_five(lambda c=cache, p=prepare: c.features(keys, range(len(keys)), p))
            few, _ = best_of_five(lambda c=cache, p=prepare: c.features(keys[:100], range(100), p))
        size = len(keys) * width * 4 / 1e6
        print(f"| {len(keys):,} × {width} ({name}) | {size:.0f} | {wall:.2f} | {cpu:.2f} | {few * 1e3:.1f} |")


if __name__ == "__main__":
    main()
