"""What a training step costs, and whether it grows with the number of labels: it must not.

Made data: datapoints and labels of one random vector each stand in for encoded texts, so that only what
training itself does is timed: sampling, attention, classifiers, votes, the lazy row-wise Adam.

    python benchmarks/step_cost.py                        # L = 45K and 450K, D = 32, losses of both kinds
    python benchmarks/step_cost.py 45000 4500000          # needs 8 GB
    python benchmarks/step_cost.py --fast 20000 10000     # preset `fast`, texts alone: N and L
    python benchmarks/step_cost.py --fast 586781 303296 --device cuda

"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle, islice
from statistics import median

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from mufin.config import Config
from mufin.data.ragged import Ragged
from mufin.encode.attention import SelfAttention
from mufin.encode.embedder import Embedder
from mufin.encode.features import Descriptors, Features, Groups
from mufin.rank.ranker import Classifiers, Ranker
from mufin.retrieve.shortlist import Shortlist
from mufin.runtime.autograd import Dropout
from mufin.train.data import TrainingData
from mufin.train.finetune import Tuner
from mufin.train.loop import Context, seeded
from mufin.train.pretrain import Siamese
from mufin.train.sampling import shuffled
from mufin.train.transfer import Networks

N, DIM, WIDTH, PER_POINT = 4000, 32, 384, 8


class Ready(nn.Module):
    """A text encoder whose frozen outputs are given."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Identity()

    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return values[:, 0]


def embedder(config: Config) -> Embedder:
    """The embedder of these settings for texts, without a pre-trained network."""
    made = Embedder.__new__(Embedder)
    nn.Module.__init__(made)
    made.register_buffer("device_marker", torch.zeros(0), persistent=False)
    made.dim, made.text, made.vision, made.joint = config.embed.dim, Ready(), None, None
    made.text_projection = nn.Linear(WIDTH, made.dim)
    made.dropout, made.raw = Dropout(config.embed.input_dropout), False
    made.self_attention = SelfAttention(made.dim)
    return made


def features(n: int, rng: np.random.Generator) -> Features:
    """One random vector an item."""
    rows = Ragged(rng.standard_normal((n, WIDTH), dtype=np.float32), np.arange(n + 1))
    return Features(Descriptors(rows, np.arange(n), np.arange(n + 1)), Descriptors.none(n))


def made_data(n: int, n_labels: int, rng: np.random.Generator) -> tuple[TrainingData, Shortlist]:
    """n points with a few labels each, some of them frequent, one label excluded, and random shortlists."""

    def relation(per_point: int) -> csr_matrix:
        drawn = (n_labels * rng.random(n * per_point) ** 2).astype(np.int32)
        offsets = np.arange(0, n * per_point + 1, per_point)
        matrix = csr_matrix((np.ones(len(drawn), bool), drawn, offsets), shape=(n, n_labels))
        matrix.sum_duplicates()
        return matrix

    exclude = relation(1)
    relevance = csr_matrix(relation(PER_POINT) > exclude)
    shortlist = Shortlist(torch.from_numpy(rng.integers(0, n_labels, (n, 100))), torch.zeros(n, 100))
    points = Groups.singles(np.arange(n))
    data = TrainingData(features(n, rng), points, features(n_labels, rng), relevance, exclude)
    return data, shortlist


def step_times(config: Config, n: int, n_labels: int, device: str, steps: int = 30) -> tuple[float, float]:
    """Median seconds of a step of Module I and of Module IV."""
    torch.manual_seed(0)
    data, shortlist = made_data(n, n_labels, np.random.default_rng(0))
    embed = embedder(config).to(device)
    generator = seeded(0, embed.device)
    siamese = Siamese(embed, data, config.pretrain, Context(generator), steps)
    siamese.start(0)
    ranker, classifiers = (part.to(device) for part in (Ranker(config), Classifiers(n_labels, embed.dim)))
    tuner = Tuner(Networks(embed, ranker, classifiers), data, shortlist, config, generator, steps)
    if tuner.votes is not None:
        tuner.votes.refresh(embed, data)
    labels, points = (torch.from_numpy(used).to(device) for used in (data.used_labels, data.used_points))
    one, four = (shuffled(each, config.finetune.batch, generator) for each in (labels, points))
    return _median(siamese.step, one, steps), _median(tuner.step, four, steps)


def _median(step: Callable[[Tensor], Tensor], batches: tuple[Tensor, ...], steps: int) -> float:
    """Seconds of a step; the first few, which allocate the state of the optimizers, are not counted."""
    times = []
    for batch in islice(cycle(batches[:-1] or batches), steps + 3):
        started = time.perf_counter()
        float(step(batch).detach())  # waits for a GPU
        times.append(time.perf_counter() - started)
    return median(times[3:])


def sampled(loss: str) -> Config:
    """Small settings with the paper's losses, or with softmax over sampled labels."""
    one, four = ("softmax", "softmax") if loss == "softmax" else ("margin", "cosine")
    pretrain = {"loss": one, "sampled": 256, "hard_positives": False}
    finetune = {"loss": four, "sampled": 256 if loss == "softmax" else 0, "batch": 128}
    return Config.parse({"embed": {"dim": DIM}, "pretrain": pretrain, "finetune": finetune}, "benchmark")


def main() -> None:
    """Print a table: labels, settings, milliseconds of a step of Modules I and IV."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("labels", type=int, nargs="*", default=[45_000, 450_000])
    parser.add_argument("--fast", type=int, nargs=2, metavar=("N", "L"))
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    runs = [(loss, sampled(loss), N, labels) for loss in ("paper", "softmax") for labels in given.labels]
    if given.fast:
        runs = [("fast", Config.preset("fast"), *given.fast)]
    print("| points | labels | settings | Module I, ms | Module IV, ms |\n|---|---|---|---|---|")
    for name, config, n, n_labels in runs:
        one, four = (1000 * seconds for seconds in step_times(config, n, n_labels, given.device))
        print(f"| {n:,} | {n_labels:,} | {name} | {one:.1f} | {four:.1f} |", flush=True)


if __name__ == "__main__":
    main()
