"""How fast are images encoded, and how much of the time is decoding?

    python benchmarks/images.py [--against SRC] [--rounds 7] [--threads 2] [--images 64]

Prints a table of milliseconds per image, wall-clock and CPU: decoding alone, in one thread; the network
alone; both, as `VisionEncoder.prepare` does them; the same with a network that only waits, as for a GPU;
and `recommend` for one image. `--against` names the `src` folder of another version: both then run by
turns, round after round, and the last column has the median ratio of their times. The encoder is that of
the preset `fast`, on a CPU.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mufin import Catalogue, Config, Item, fit, load
from mufin.data.images import load_pixels
from mufin.encode.vision import VisionEncoder

DEVICE = 0.004  # seconds per image that the stand-in for a GPU takes
Job = tuple[Callable[[], object], int]  # what is timed, and how many images it takes


def photo(side: int, seed: int) -> bytes:
    """A JPEG of a smooth scene with grain, about as large as a photograph."""
    rng = np.random.default_rng(seed)
    scene = Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8))
    smooth = np.asarray(scene.resize((side, side), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = smooth + rng.integers(-12, 13, (side, side, 1))
    stream = io.BytesIO()
    Image.fromarray(grain.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=88)
    return stream.getvalue()


def model_folder(folder: Path) -> None:
    """A barely trained model of 300 demo items: its answers do not matter here."""
    demo = Catalogue.demo()
    chosen = demo.items[:300]
    items = [Item(item.id, item.texts, item.images) for item in chosen]
    labels = [Item(f"label {i}", [f"label {i}"]) for i in range(10)]
    pairs = [(item.id, [f"label {i % 10}"]) for i, item in enumerate(items)]
    fast = Config.preset("fast")
    run = fast.run.model_copy(update={"batches": 2})
    fit(Catalogue.build(items, labels, train=pairs), fast.model_copy(update={"run": run}), folder, quiet=True)


class Waiting(VisionEncoder):
    """An encoder whose network computes nothing and keeps no core busy."""

    def _frozen(self, pixels: torch.Tensor) -> np.ndarray:
        time.sleep(DEVICE * len(pixels))
        return np.zeros((len(pixels), 1), np.float32)


def encoding(images: Sequence[bytes | Path], kind: str) -> Iterator[tuple[str, Job]]:
    """Decoding, the network, and both together."""
    encoder = VisionEncoder(Config.preset("fast").vision).eval()
    parts = torch.from_numpy(np.stack([load_pixels(image, encoder.size) for image in images])).split(8)
    network = torch.no_grad()(lambda: [encoder._frozen(part) for part in parts])
    yield f"decode, {kind}", (lambda: [load_pixels(image, encoder.size) for image in images], len(images))
    yield f"network, {kind}", (network, len(images))
    yield f"encode, {kind}", (lambda: encoder.prepare(images), len(images))
    waiting = Waiting(Config.preset("fast").vision).eval()
    yield (
        f"encode, {kind}, network waits {1e3 * DEVICE:.0f} ms",
        (lambda: waiting.prepare(images), len(images)),
    )


def jobs(folder: Path, count: int) -> dict[str, Job]:
    """Everything that is timed, by name."""
    demo = Catalogue.demo().items.flat_images()[1]
    webp = [demo[i] for i in range(count)]
    found = dict(encoding(webp, "WebP of 96 px"))
    found |= encoding([photo(1000, seed % 20) for seed in range(count)], "JPEG of 1,000 px")
    model = load(folder)
    asked = [Item(images=[image]) for image in webp[:10]]
    found["recommend, one WebP of 96 px"] = (lambda: [model.recommend(item) for item in asked], len(asked))
    decoded = Item(images=[Image.fromarray(load_pixels(photo(1000, 0), 1000))])
    found["recommend, one decoded image of 1,000 px"] = (lambda: model.recommend(decoded), 1)
    return found


def work(folder: Path, count: int) -> None:
    """Run the job that each line of the input names; answer with ms per image, CPU ms per image, peak MB."""
    known = jobs(folder, count)
    for job, _ in known.values():
        job()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        job, images = known[line.strip()]
        start, cpu = time.perf_counter(), time.process_time()
        job()
        times = time.perf_counter() - start, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps([*(1e3 * each / images for each in times), peak]), flush=True)


class Worker:
    """This script in a process of its own, with the sources of one version."""

    def __init__(self, sources: Path | None, arguments: list[str], threads: int) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if sources is not None:
            environment["PYTHONPATH"] = str(sources.resolve())
        command = [sys.executable, __file__, *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.names: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def run(self, name: str) -> list[float]:
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        found: list[float] = json.loads(self._line())
        return found


def compare(workers: list[Worker], rounds: int) -> None:
    """Print the table: the first worker, and the other one if there is one."""
    both = len(workers) > 1
    print("| job | ms per image | CPU ms |" + " other, ms | CPU ms | ratio |" * both)
    print("|---|---|---|" + "---|---|---|" * both)
    for job in workers[0].names:
        found = np.array(
            [[worker.run(job) for worker in workers] for _ in range(rounds)]
        )  # (rounds, workers, 3)
        middle = np.median(found, axis=0)
        cells = [f"{each:.2f}" for row in middle for each in row[:2]]
        ratio = [f"{np.median(found[:, 0, 0] / found[:, 1, 0]):.2f}"] if both else []
        print(f"| {job} | " + " | ".join(cells + ratio) + " |", flush=True)
    peaks = [f"{worker.run(workers[0].names[-1])[2]:,.0f}" for worker in workers]
    print("\npeak memory, MB: " + ", other: ".join(peaks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.images)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        model_folder(folder)
        versions = [None] if options.against is None else [None, options.against]
        arguments = ["--work", str(folder), "--images", str(options.images)]
        workers = [Worker(version, arguments, options.threads) for version in versions]
        try:
            compare(workers, options.rounds)
        finally:
            for worker in workers:
                worker.process.communicate()


if __name__ == "__main__":
    main()
