"""Predict with two Ray workers of one thread each and with one: how many more items per second?

    mufin demo -o runs/demo
    python benchmarks/ray_workers.py runs/demo --rounds 3 --rows 10240 --texts -o benchmarks/results/ray.md

The items are those of the embedded catalogue, repeated. Runs with one and with two workers alternate. The
rate is that of the steady state: from the moment when every worker has finished a part until one of them
finishes its last. What comes before is start-up: Ray, the processes, torch and the model. The CPU time per
item says what the ratio would be on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def notes_of(notes: Path) -> type:
    """Return the class of workers, which also note when each part was finished; Ray sends it by value."""
    from mufin.distributed import predict

    class Worker(predict.Worker):
        def __call__(self, part: Any) -> Any:
            result = super().__call__(part)
            facts = [os.getpid(), time.time(), time.process_time(), len(part.span.rows)]
            with notes.open("a") as file:
                file.write(json.dumps(facts) + "\n")
            return result

    return Worker


def measured(run: Path, items: Path, workers: int) -> dict[str, float]:
    """Predict all items with so many workers."""
    from mufin.distributed import predict
    from mufin.distributed.cluster import connected
    from mufin.model.bulk import Wanted
    from mufin.progress import QUIET

    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder, "notes")
        original, predict.Worker = predict.Worker, notes_of(notes)  # type: ignore[misc,assignment]  # to time it
        started, load = time.time(), os.getloadavg()[0]
        try:
            with connected(cpus=workers):
                up = time.time() - started
                job = predict.Job(run, items, Path(folder, "out"), Wanted(), device="cpu")
                predict.predict_parts(job, QUIET)
                seconds = time.time() - started
        finally:
            predict.Worker = original  # type: ignore[misc]  # put back
        parts = [json.loads(line) for line in notes.read_text().splitlines()]
    pids = {pid for pid, *_ in parts}
    assert len(pids) == workers, f"{len(pids)} of {workers} workers took part: use more rows"
    own = [[part for part in parts if part[0] == pid] for pid in pids]
    begin, end = max(one[0][1] for one in own), min(one[-1][1] for one in own)
    steady = [part for part in parts if begin < part[1] <= end]
    cpu = sum(one[-1][2] - one[0][2] for one in own)
    return {
        "items_per_second": sum(part[3] for part in steady) / (end - begin),
        "cpu_ms_per_item": 1000 * cpu / sum(part[3] for one in own for part in one[1:]),
        "ray_seconds": up,
        "first_part_seconds": min(part[1] for part in parts) - started,
        "seconds": seconds,
        "load": (load + os.getloadavg()[0]) / 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", action="store_true", help="without images")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    from mufin import demo

    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        items = Path(folder, "items.parquet")
        table = pq.read_table(demo.folder() / "items.parquet")
        if options.texts:
            table = table.drop_columns(["images"])
        times = -(-options.rows // table.num_rows)
        pq.write_table(pa.concat_tables([table] * times)[: options.rows], items, row_group_size=1024)
        for _ in range(options.rounds):
            rounds.append([measured(options.run, items, workers) for workers in (1, 2)])
            print(json.dumps(rounds[-1]), flush=True)
    page = report(rounds, options.rows, "texts" if options.texts else "texts and images")
    print(page)
    if options.output is not None:
        options.output.write_text(page, "utf-8")


def report(rounds: list[list[dict[str, float]]], rows: int, what: str) -> str:
    """Return the results as a page."""
    columns = "workers", "items/s", "ratio", "CPU ms per item", "Ray started, s", "first part, s", "load"
    lines = [
        "# Ray: two workers against one\n",
        f"Made by `benchmarks/ray_workers.py` on {os.cpu_count()} cores: `mufin predict --ray`, the demo",
        f"model, {rows:,} items with {what}, workers of one thread. One and two workers took turns. The load",
        "average counts other programs, too; above the number of cores, they take time from the workers.\n",
        f"| {' | '.join(['round', *columns])} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    ratios = [two["items_per_second"] / one["items_per_second"] for one, two in rounds]
    for number, (pair, ratio) in enumerate(zip(rounds, ratios, strict=True), start=1):
        for workers, one in enumerate(pair, start=1):
            cells = [
                f"{number}", f"{workers}", f"{one['items_per_second']:.0f}", f"{ratio:.2f}" * (workers == 2),
                f"{one['cpu_ms_per_item']:.2f}", f"{one['ray_seconds']:.1f}",
                f"{one['first_part_seconds']:.1f}", f"{one['load']:.1f}",
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    one, two = (statistics.median(pair[i]["cpu_ms_per_item"] for pair in rounds) for i in (0, 1))
    lines += [
        "",
        f"Median ratio of items per second: {statistics.median(ratios):.2f}. By CPU time per item, two",
        f"workers with a core each do {2 * one / two:.2f} times the work of one.",
    ]
    load, cores = statistics.median(one["load"] for pair in rounds for one in pair), os.cpu_count() or 1
    if load > cores + 1:
        lines += [
            "",
            f"The machine was busy, with a load of {load:.0f} on {cores} cores, so the ratios of single",
            f"rounds, {min(ratios):.2f} to {max(ratios):.2f}, say more about other programs than about Ray.",
            "That two workers are at least 1.6 times as fast as one is not shown; CPU time per item only",
            "says that a worker does no more work for an item beside another one.",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
