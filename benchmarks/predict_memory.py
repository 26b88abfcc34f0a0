"""Memory of `mufin predict` by the number of rows: it must not grow.

    mufin demo -o runs/demo
    python benchmarks/predict_memory.py runs/demo                # 1,000 and 100,000 rows of CSV
    python benchmarks/predict_memory.py runs/demo 1000 1000000

Each run is a process of its own that reads standard input and writes standard output; its peak is what the
kernel reports when it ends.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THINGS = ["desk", "lamp", "chair", "sofa", "shelf", "stool", "rug", "clock"]
KINDS = ["red", "green", "blue", "black", "oak", "steel", "glass", "wool"]
WORDS = [f"{kind} {thing}" for kind in KINDS for thing in THINGS]


def write_table(path: Path, rows: int) -> None:
    """Write a table of titles, most of them different."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sku", "title"])
        for row in range(rows):
            table.writerow([f"item-{row}", " ".join(WORDS[row // 64**i % 64] for i in range(3))])


def measure(run: Path, rows: int) -> tuple[float, float, int]:
    """Return the peak in MB, the seconds and the lines of one run."""
    command = [sys.executable, "-m", "mufin", "predict", str(run), "-", "--id", "sku", "--text", "title"]
    with tempfile.TemporaryDirectory() as folder:
        table, out = Path(folder) / "in.csv", Path(folder) / "out.csv"
        write_table(table, rows)
        started = time.monotonic()
        with table.open("rb") as source, out.open("wb") as target:
            child = subprocess.Popen(command, stdin=source, stdout=target)
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"mufin predict ended with {child.returncode}")
        with out.open("rb") as target:
            lines = sum(1 for _ in target) - 1
    return usage.ru_maxrss / 1024, time.monotonic() - started, lines


def main() -> None:
    """Print one row per size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a trained model")
    parser.add_argument("rows", type=int, nargs="*", default=[1000, 100_000])
    arguments = parser.parse_args()
    print("| rows in | lines out | peak, MB | s |\n|---|---|---|---|", flush=True)
    for rows in arguments.rows:
        peak, seconds, lines = measure(arguments.run, rows)
        print(f"| {rows:,} | {lines:,} | {peak:,.0f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
