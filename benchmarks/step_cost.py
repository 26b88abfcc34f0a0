"""Does the cost of a training step grow with the number of labels? It must not, with sampled losses.

Made data: N datapoints and L labels of one random vector each stand in for encoded texts, so that only what
training itself does is timed: sampling, attention, classifiers, the lazy row-wise Adam.

    python benchmarks/step_cost.py                       # L = 45K and 450K, D = 32
    python benchmarks/step_cost.py 45000 4500000         # needs 8 GB

"""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import nn

from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.encode.features import Descriptors, Features, Groups
from mufin.ragged import Ragged
from mufin.rank.classifiers import Classifiers
from mufin.rank.ranker import Ranker
from mufin.retrieve.shortlist import Shortlist
from mufin.train.data import TrainingData
from mufin.train.finetune import _Tuner
from mufin.train.loop import Context
from mufin.train.networks import Networks
from mufin.train.pretrain import _Siamese

N, WIDTH, DIM, PER_POINT = 4000, 32, 32, 4


class Ready(nn.Module):
    """A text encoder whose frozen outputs are given."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Identity()

    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return values[:, 0]


def embedder(config: Config) -> Embedder:
    """The embedder of these settings without pre-trained networks."""
    made = Embedder.__new__(Embedder)
    nn.Module.__init__(made)
    from mufin.attention import SelfAttention

    made.dim, made.text, made.vision, made.joint = DIM, Ready(), None, None
    made.text_projection = nn.Linear(WIDTH, DIM)
    made.dropout, made.raw = nn.Dropout(0.0), False
    made.self_attention = SelfAttention(DIM)
    return made


def features(n: int, rng: np.random.Generator) -> Features:
    """One random vector an item."""
    rows = Ragged(rng.standard_normal((n, WIDTH), dtype=np.float32), np.arange(n + 1))
    return Features(Descriptors(rows, np.arange(n), np.arange(n + 1)), Descriptors.none(n))


def made_data(n_labels: int, rng: np.random.Generator) -> tuple[TrainingData, Shortlist]:
    """N points with a few random labels each, and random shortlists."""
    indices = rng.integers(0, n_labels, N * PER_POINT).astype(np.int32)
    offsets = np.arange(0, N * PER_POINT + 1, PER_POINT)
    relevance = csr_matrix((np.ones(len(indices), bool), indices, offsets), shape=(N, n_labels))
    relevance.sum_duplicates()
    exclude = csr_matrix((N, n_labels), dtype=bool)
    shortlist = Shortlist(torch.from_numpy(rng.integers(0, n_labels, (N, 100))), torch.zeros(N, 100))
    points = features(N, rng)
    data = TrainingData(points, Groups.singles(np.arange(N)), features(n_labels, rng), relevance, exclude)
    return data, shortlist


def step_times(n_labels: int, loss: str, steps: int = 30, batch: int = 128) -> tuple[float, float]:
    """Median seconds of a step of Module I and of Module IV."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    one, four = ("softmax", "softmax") if loss == "softmax" else ("margin", "cosine")
    config = Config.parse(
        {
            "embed": {"dim": DIM},
            "pretrain": {"loss": one, "sampled": 256, "hard_positives": False},
            "finetune": {"loss": four, "sampled": 256 if loss == "softmax" else 0},
        },
        "benchmark",
    )
    data, shortlist = made_data(n_labels, rng)
    embed = embedder(config)
    siamese = _Siamese(embed, data, config.pretrain, Context(rng), steps)
    networks = Networks(embed, Ranker(config), Classifiers(n_labels, DIM))
    tuner = _Tuner(networks, data, shortlist, config, rng, steps)
    used = data.used_labels
    return (
        _median(lambda: siamese.step(rng.choice(used, batch, replace=False)), steps),
        _median(lambda: tuner.step(rng.choice(N, batch, replace=False)), steps),
    )


def _median(step: object, steps: int) -> float:
    times = []
    for _ in range(steps + 3):  # the first few allocate the state of the optimizers
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return median(times[3:])


def main() -> None:
    """Print a table: labels, loss, milliseconds of a step of Modules I and IV."""
    sizes = [int(value) for value in sys.argv[1:]] or [45_000, 450_000]
    print("| labels | loss | Module I, ms | Module IV, ms |\n|---|---|---|---|")
    for loss in ("paper", "softmax"):
        for n_labels in sizes:
            one, four = step_times(n_labels, loss)
            print(f"| {n_labels:,} | {loss} | {1000 * one:.1f} | {1000 * four:.1f} |", flush=True)


if __name__ == "__main__":
    main()
