"""How well a plan foretells time, memory and disk: plan made catalogues of three sizes, then train on them.

    python benchmarks/plan.py                    # preset fast, 10 epochs of fine-tuning: minutes
    python benchmarks/plan.py --preset best

Planning and training run in a process each, with an empty feature cache. Time is that of `fit`, memory the
peak resident memory of its process, disk the most that run folder and cache held, looked at five times a
second. Results go to benchmarks/results/plan.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from made_catalogue import made_catalogue

SIZES = ((200, 500), (1000, 2000), (4000, 8000))  # labels, points
TARGET = Path(__file__).parent / "results" / "plan.md"
PROGRAM = """
import json, sys, time
from mufin import Catalogue, Config, fit, plan
from mufin.runtime.memory import keep_freed_memory
from mufin.runtime.usage import peak_memory
job, folder, preset, out, *changes = sys.argv[1:]
catalogue, config = Catalogue.read(folder), Config.preset(preset).override(changes)
started = time.perf_counter()
with keep_freed_memory():
    if job == "plan":
        planned = plan(catalogue, config)
        took = {"seconds": planned.seconds, "memory": planned.memory, "disk": planned.disk}
        print(json.dumps(took | {"planning": time.perf_counter() - started}))
    else:
        fit(catalogue, config, out, quiet=True)
        print(json.dumps({"seconds": time.perf_counter() - started, "memory": peak_memory()}))
"""


def held(folder: Path) -> int:
    """The size of all files in a folder, some of which may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def run(job: str, folder: Path, preset: str, changes: list[str]) -> dict[str, float]:
    """Plan or train in a process of its own; return what it says and the most disk space it used."""
    with tempfile.TemporaryDirectory(prefix="mufin-plan-") as temporary:
        environment = os.environ | {"MUFIN_CACHE": f"{temporary}/cache"}
        command = [sys.executable, "-c", PROGRAM, job, str(folder), preset, f"{temporary}/run", *changes]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        most = 0
        while process.poll() is None:
            most = max(most, held(Path(temporary)))
            time.sleep(0.2)
        assert process.stdout is not None
        found: dict[str, float] = {"disk": most} | json.loads(process.stdout.read())
        return found


def main() -> None:
    """Measure all sizes and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--set", action="append", default=["finetune.epochs=10"], dest="changes")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "mufin-made")
    arguments = parser.parse_args()
    used, date = " ".join([arguments.preset, *arguments.changes]), time.strftime("%Y-%m-%d")
    head = f"""# Plans and what came of them
`python benchmarks/plan.py`, {used}, {date}, {os.cpu_count()} cores.
Planned / measured, and by how much the plan is off.

| labels | points | time, s | off | memory, MB | off | disk, MB | off | planning took, s |
|---|---|---|---|---|---|---|---|---|
"""
    TARGET.write_text(head, "utf-8")
    for labels, points in SIZES:
        folder = made_catalogue(arguments.data / f"{labels}-{points}", labels, points, images=1)
        planned, real = (run(job, folder, arguments.preset, arguments.changes) for job in ("plan", "fit"))
        cells = [f"{labels:,}", f"{points:,}"]
        for name, unit in (("seconds", 1.0), ("memory", 1e6), ("disk", 1e6)):
            off = planned[name] / real[name] - 1
            cells += [f"{planned[name] / unit:,.0f} / {real[name] / unit:,.0f}", f"{off:+.0%}"]
        line = f"| {' | '.join([*cells, format(planned['planning'], '.0f')])} |\n"
        print(line, end="", flush=True)
        with TARGET.open("a", encoding="utf-8") as file:
            file.write(line)


if __name__ == "__main__":
    main()
