"""Train on several processes and on one: are the losses the same, and how much faster is it?

    python benchmarks/ranks.py src/mufin/demo

Both train the last two layers of the text encoder with one thread per process. The losses are compared
without dropout, step by step, over 51 steps of Module IV, in f32; the time of a step is the median of all
but the first ten.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

STEPS = 50
SETTINGS = [
    "modalities=text", "text.train_layers=2", "embed.dropout=0", "embed.input_dropout=0", "memory.loss=0",
    "pretrain.epochs=0", "finetune.epochs=3", "finetune.encoder_epochs=all", f"run.batches={STEPS}",
    "finetune.batch=256", "finetune.sampled=512", "run.validation=0.05",
    "run.pictures=false", "run.device=cpu",
]  # fmt: skip


def worker(catalogue: str, out: str) -> None:
    """Train in this process and write down loss and time of each step."""
    import torch

    from mufin import Catalogue, Config, fit
    from mufin.encode import text
    from mufin.runtime.autograd import Dropout
    from mufin.train.loop import Loop

    torch.set_num_threads(1)
    text.fast_dtype = lambda: torch.float32  # in bf16, losses of other batch sizes differ by a percent
    losses, times = [], [time.perf_counter()]
    step = Loop.step

    def noted(self: Loop, *given: Any) -> Any:
        loss = step(self, *given)
        losses.append(float(loss.detach()))
        times.append(time.perf_counter())
        return loss

    Loop.step = noted  # type: ignore[method-assign]  # to note the loss
    # The encoder's own dropout: in its layers, and in its attention.
    Dropout.forward = lambda self, input: input  # type: ignore[method-assign]  # none
    torch.nn.functional.dropout = lambda x, *_, **__: x  # type: ignore[assignment]  # none
    attention = torch.nn.functional.scaled_dot_product_attention
    without = partial(attention, dropout_p=0.0)
    torch.nn.functional.scaled_dot_product_attention = lambda *given, dropout_p=0.0, **options: without(
        *given, **options
    )
    config = Config.preset("fast").override(SETTINGS)
    fit(Catalogue.read(catalogue), config, out, quiet=True, if_exists="overwrite")
    if os.environ.get("RANK", "0") == "0":
        seconds = statistics.median(b - a for a, b in pairwise(times[10:]))
        Path(f"{out}.json").write_text(json.dumps({"losses": losses, "seconds": seconds}))


def run(catalogue: str, ranks: int, folder: Path) -> dict[str, Any]:
    """Train with so many processes."""
    from mufin import Catalogue, load
    from mufin.evaluate.score import evaluate

    out = folder / str(ranks)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command = [sys.executable, *(launcher if ranks > 1 else []), __file__, catalogue, "--worker", str(out)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    found: dict[str, Any] = json.loads(Path(f"{out}.json").read_text())
    return found | {"P@1": evaluate(load(out), Catalogue.read(catalogue))["P@1"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("catalogue")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.catalogue, options.worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        one, more = (run(options.catalogue, ranks, Path(folder)) for ranks in (1, options.ranks))
    apart = max(abs(a - b) / abs(a) for a, b in zip(one["losses"], more["losses"], strict=True))
    print(f"steps compared                {len(one['losses'])}")
    print(f"largest relative difference   {apart:.1e}")
    print(f"P@1 of one, of {options.ranks} processes    {one['P@1']:.2f}, {more['P@1']:.2f}")
    print(f"seconds per step              {one['seconds']:.3f}, {more['seconds']:.3f}")
    print(f"times as fast                 {one['seconds'] / more['seconds']:.2f}")


if __name__ == "__main__":
    main()
