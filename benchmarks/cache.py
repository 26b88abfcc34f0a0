"""What does checking cost when features are read from the cache?

    python benchmarks/cache.py [--descriptors 50000]

Prints a table: the time to read all features of a cache, also as CPU time, and a hundred of them, each
the best of five. By then the files are in memory; reading from a disk would hide the cost.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mufin.encode.cache import FeatureCache
from mufin.ragged import Ragged, offsets_of

WIDTHS = {384: "texts of `fast`", 1280: "images of `fast`", 6072: "images of `best`"}


def best(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of CPU time."""
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
    first = np.sort(rng.choice(keys, len(keys) // 2, replace=False))  # a catalogue that grew once
    print("| features | MB | all, s | CPU, s | 100 of them, ms |\n|---|---|---|---|---|")
    for width, name in WIDTHS.items():
        values = rng.standard_normal((256, width), dtype=np.float32)

        def prepare(some: Sequence[object], values: np.ndarray = values) -> Ragged:
            count = len(some)
            return Ragged(np.resize(values, (count, values.shape[1])), offsets_of(np.ones(count)))

        with tempfile.TemporaryDirectory() as folder:
            cache = FeatureCache("benchmark", Path(folder))
            for some in (first, keys):
                cache.features(some, range(len(some)), prepare)
            wall, cpu = best(lambda c=cache, p=prepare: c.features(keys, range(len(keys)), p))
            few, _ = best(lambda c=cache, p=prepare: c.features(keys[:100], range(100), p))
        size = len(keys) * width * 4 / 1e6
        print(f"| {len(keys):,} × {width} ({name}) | {size:.0f} | {wall:.2f} | {cpu:.2f} | {few * 1e3:.1f} |")


if __name__ == "__main__":
    main()
