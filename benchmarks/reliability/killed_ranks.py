"""Kill random processes of one training by several, and compare its model with that of an undisturbed one.

    python benchmarks/reliability/killed_ranks.py src/mufin/demo --kills 5

torchrun starts the processes, and starts all of them again when one dies. Each kill hits a process chosen at
random, at a random time after the first checkpoint since the last start. Rank 0 writes down where each start
begins (module, epoch, steps of the epoch), and every step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK = os.environ.get("RANK", "")


def worker(catalogue: str, config: str, out: str) -> None:
    """Train in this process."""
    from mufin import Catalogue, Config, fit

    Path(f"{out}.pid-{RANK}").write_text(str(os.getpid()))
    if RANK == "0":
        take_notes(Path(f"{out}.notes"))
    fit(Catalogue.read(catalogue), Config.read(config), out, quiet=True, if_exists="resume")
    sys.stderr.flush()
    os._exit(0)  # threads of a process group can abort an ordinary exit


def take_notes(path: Path) -> None:
    """Append a line to a file for each start, with the steps of the checkpoint, and for each step."""
    from mufin.train.checkpoint import Checkpoints
    from mufin.train.loop import Loop

    resume, step = Checkpoints.resume, Loop.step

    def write(line: str) -> None:
        with path.open("a") as file:
            file.write(f"{line}\n")

    def resumed(self: Checkpoints, *given: Any) -> None:
        resume(self, *given)
        saved = self.saved
        place = f"{saved.module} {saved.state['epoch']}.{saved.state['done']}" if saved else "the beginning"
        write(f"start {place}")

    def stepped(self: Loop, *given: Any) -> Any:
        loss = step(self, *given)
        write("step")
        return loss

    Checkpoints.resume = resumed  # type: ignore[method-assign]  # to note where it goes on
    Loop.step = stepped  # type: ignore[method-assign]  # to count steps


def newest(out: Path) -> int:
    """Return the number of the newest checkpoint, 0 if there is none."""
    return max((int(path.name) for path in (out / ".mufin-training").glob("[0-9]*")), default=0)


def starts(out: Path) -> list[str]:
    """Return where each start began."""
    notes = Path(f"{out}.notes")
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [line.removeprefix("start ") for line in lines if line.startswith("start ")]


def train(options: argparse.Namespace, config: Path, out: Path, kills: int, pause: float) -> dict[str, Any]:
    """Train by several processes, of which so many are killed, and say what came of it."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    launcher += [f"--max-restarts={kills}", "--monitor-interval=0.1"]
    command = [sys.executable, *launcher, __file__, options.catalogue, "--worker", str(config), str(out)]
    started, log = time.monotonic(), Path(f"{out}.log")
    with log.open("w") as said:  # the processes that are left complain at length
        job = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=said, stderr=said)
    killed: list[int] = []
    while len(killed) < kills and wait_for(job, lambda: len(starts(out)), len(killed)):
        before = newest(out)
        if not wait_for(job, lambda: newest(out), before):
            break
        time.sleep(random.uniform(0, pause))
        rank = random.randrange(options.ranks)
        if job.poll() is None:
            os.kill(int(Path(f"{out}.pid-{rank}").read_text()), signal.SIGKILL)
            killed.append(rank)
            print(f"killed rank {rank} after {time.monotonic() - started:.0f} s", flush=True)
    if job.wait() or len(killed) < kills:
        raise SystemExit(f"{log.read_text()}\nexit code {job.returncode} after {len(killed)} kills")
    steps = Path(f"{out}.notes").read_text().splitlines().count("step")
    return {"killed ranks": killed, "begun at": starts(out), "steps": steps,
            "seconds": round(time.monotonic() - started)}  # fmt: skip


def wait_for(job: subprocess.Popen[bytes], value: Callable[[], int], above: int) -> bool:
    """Wait until the value is above a number; return False if the job has ended before."""
    while value() <= above:
        if job.poll() is not None:
            return False
        time.sleep(0.05)
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("catalogue")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--set", action="append", default=[], help="as of mufin train")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--checkpoint", type=float, default=0.1, help="minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.catalogue, *options.worker)
        return
    from mufin import Catalogue, Config, load
    from mufin.evaluate.score import evaluate

    random.seed(options.seed)
    catalogue, found = Catalogue.read(options.catalogue), {}
    config = Config.preset(options.preset).override([f"run.checkpoint={options.checkpoint}", *options.set])
    with tempfile.TemporaryDirectory(prefix="mufin-ranks-") as folder:
        path = Path(folder, "config.toml")
        path.write_text(config.to_toml(), "utf-8")
        pause = 0.0
        for name, kills in (("undisturbed", 0), ("killed", options.kills)):
            out = Path(folder, name)
            found[name] = train(options, path, out, kills, pause)
            found[name]["P@1"] = round(evaluate(load(out), catalogue)["P@1"], 2)
            pause = found[name]["seconds"] / (2 * max(1, options.kills))
        same = len({Path(folder, name, "mufin.json").read_text() for name in found}) == 1
    print(json.dumps(found | {"identical models": same}, indent=2))
    begun = found["killed"]["begun at"]
    sys.exit("the beginning" in begun[1:])


if __name__ == "__main__":
    main()
