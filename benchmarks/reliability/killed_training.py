"""Kill a real training at random moments, resume it, and compare the result with an uninterrupted one.

    python benchmarks/reliability/killed_training.py --kills 200
    python benchmarks/reliability/killed_training.py --catalogue src/mufin/demo --preset fast --kills 20

The first trains tiny networks on a small made catalogue.

Each attempt is a process of its own, killed by SIGKILL after a random time, and every fifth one while it
saves the final model. The feature cache is empty at first, so encoding is killed, too. With --checkpoint 0,
every step ends with a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork

from mufin import Catalogue, Config, fit
from mufin.encode.embedder import Embedder
from mufin.files.folder import MANIFEST
from mufin.train.checkpoint import FACTS, FOLDER


def attempt(catalogue: Path, config: Config, run: Path, cache: Path) -> int:
    """Start or resume the training in a child process and return its number."""
    child = os.fork()
    if child:
        return child
    os.environ["MUFIN_CACHE"] = str(cache)
    try:
        fit(Catalogue.read(catalogue), config, run, quiet=True, if_exists="resume")
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def finished(child: int, seconds: float, run: Path, while_saving: bool) -> bool:
    """Wait for the child; kill it after so many seconds or when it saves. Return whether it ended."""
    deadline = time.monotonic() + seconds
    before = {path.name for path in run.glob(".mufin-saving-*")}  # left by an earlier kill
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            if os.waitstatus_to_exitcode(status):
                raise SystemExit("a resumed training failed")
            return True
        saving = while_saving and {path.name for path in run.glob(".mufin-saving-*")} - before
        if saving:
            time.sleep(random.uniform(0, 0.03))
        if saving or (not while_saving and time.monotonic() > deadline):
            os.kill(child, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        time.sleep(0.001)


def stage(run: Path, saving: bool) -> str:
    """Say in which stage a killed training was, by what it left behind."""
    if saving:
        return "saving"
    numbers = sorted(path.name for path in (run / FOLDER).glob("[0-9]*"))
    if (run / MANIFEST).exists():
        return "saved"
    if not numbers:
        return "encoding or pre-training, before a checkpoint"
    facts = json.loads((run / FOLDER / numbers[-1] / FACTS).read_text())
    state = dict(facts["state"]["dict"])
    ended = state["epoch"] == state["epochs"]
    if facts["module"] == "pretrain":
        return "shortlists" if ended else "pre-training"
    return "assembling" if ended else "fine-tuning"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--catalogue", type=Path, help="the made one by default")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--config", type=Path, help="TOML file instead of a preset")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=1e9, help="end earlier after so many")
    parser.add_argument("--checkpoint", type=float, default=0, help="minutes")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    folder = Path(tempfile.mkdtemp(prefix="mufin-kills-"))
    try:
        catalogue, config = options.catalogue, Config.preset(options.preset)
        if catalogue is None:
            catalogue, config = made(folder)
        if options.config:
            config = Config.read(options.config)
        config = config.override([f"run.checkpoint={options.checkpoint}"])
        print(json.dumps(study(catalogue, config, options.kills, options.minutes, folder)))
    finally:
        shutil.rmtree(folder)


def made(folder: Path) -> tuple[Path, Config]:
    """Return the small catalogue of the tests, and settings with tiny encoders."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from made import made_config, made_encoders, made_shop

    made_shop(3).write(folder / "shop")
    changes = ["pretrain.epochs=20", "finetune.epochs=10", "memory.neighbours=5"]
    return folder / "shop", made_config(*made_encoders(folder / "encoders")).override(changes)


def study(catalogue: Path, config: Config, kills: int, minutes: float, folder: Path) -> dict[str, object]:
    """Kill trainings until there were so many kills; return where they hit and how many models came of it."""
    Embedder(config)  # import everything once: each attempt is a fork
    started = time.monotonic()
    whole = folder / "whole"
    finished(attempt(catalogue, config, whole, folder / "cache"), 1e9, whole, while_saving=False)
    seconds = time.monotonic() - started
    expected = (whole / MANIFEST).read_text()
    stages: Counter[str] = Counter()
    run, cache, same, most, here = folder / "run", folder / "cache-1", 0, 0, 0
    while stages.total() < kills and time.monotonic() < started + 60 * minutes:
        child = attempt(catalogue, config, run, cache)
        saving = stages.total() % 5 == 4
        if not finished(child, random.uniform(0, seconds), run, saving):
            stages[stage(run, saving)] += 1
            here += 1
            continue
        if (run / MANIFEST).read_text() != expected:
            raise SystemExit(f"another model after {here} kills ({dict(stages)})")
        if (run / FOLDER).exists():
            raise SystemExit(f"checkpoints are left after {here} kills ({dict(stages)})")
        same, most, here = same + 1, max(most, here), 0
        shutil.rmtree(run)
        shutil.rmtree(cache)
    most = max(most, here)
    while not finished(attempt(catalogue, config, run, cache), 1e9, run, while_saving=False):
        pass
    if (run / MANIFEST).read_text() != expected:
        raise SystemExit("another model at the end")
    return {"kills": stages.total(), "identical models": same + 1, "kills of one training": most, **stages}


if __name__ == "__main__":
    main()
