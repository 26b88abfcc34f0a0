"""How long each stage of `recommend` takes, one query at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from mufin.encode.features import Groups
from mufin.evaluate.report.figures import Theme, bare
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.evaluate.report.study import Study
from mufin.inference import at_ease

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

QUERIES, WARM = 30, 3
K = 10
STAGES = (
    "read: tokens, images, frozen layers, words",
    "embed: trained layers, self-attention",
    "rank: proposals and evidence of all signals",
    "hits: ids, texts, parts",
)


def latency_section(study: Study) -> Section:
    """Milliseconds a stage for single queries, from texts and pictures to hits; nothing cached."""
    points = study.sample(QUERIES + WARM)
    times = np.array([_times(study, int(point)) for point in points])  # (q, stages) in ms
    times = times[WARM:] if len(times) > WARM else times
    middle = np.median(times, axis=0)
    stages = dict(zip(STAGES, times.T, strict=True)) | {"all": times.sum(axis=1)}
    rows: Rows = [[name, *_summary(values)] for name, values in stages.items()]

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        place = np.arange(len(STAGES))
        bars = axes.barh(place, middle, color=theme.good, height=0.65)
        axes.bar_label(bars, [f"{value:.2f} ms" for value in middle], padding=3)
        axes.set_yticks(place, STAGES)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.18 * max(middle.max(), 1e-3))
        axes.set_xlabel("median, ms")
        bare(axes, theme, "x")

    device = study.model.labels.alive.device.type
    kind = f"{device}, {torch.get_num_threads()} threads" if device == "cpu" else device
    batched = study.predictions.ms_per_point
    return Section(
        "latency",
        "Latency by stage",
        [
            Text(
                f"{len(times)} queries one at a time on this machine ({kind}), nothing cached. In "
                f"batches, everything after the frozen layers took {batched:.2f} ms a datapoint."
            ),
            Figure("latency", "Median time of each stage of a single query.", _alt(middle), draw, (8.0, 3.0)),
            Table("latency", ["stage, ms", "median", "95th percentile", "mean"], rows),
        ],
    )


def _summary(values: np.ndarray) -> list[float]:
    return [float(np.median(values)), float(np.quantile(values, 0.95)), float(values.mean())]


def _alt(middle: np.ndarray) -> str:
    return "; ".join(f"{name} {value:.2f} ms" for name, value in zip(STAGES, middle, strict=True))


@torch.no_grad()
def _times(study: Study, point: int) -> list[float]:
    """Milliseconds of each stage for one point: what `recommend` does, step by step."""
    model = study.model
    items = study.catalogue.items.take(np.array(study.members(point)))
    group = Groups(np.array([0, len(items)]), np.arange(len(items)))
    with at_ease(model.labels.alive.device):
        clock = _Clock(model.labels.alive.device)
        features = model.features(items)
        clock.lap()
        query = model.query(features, group)
        clock.lap()
        ranked = model.rank(query, K)
        clock.lap()
        model.hits(ranked)
        clock.lap()
    return clock.laps


class _Clock:
    """A stopwatch that waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.laps: list[float] = []
        self.restart()

    def restart(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.started = time.perf_counter()

    def lap(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.laps.append((time.perf_counter() - self.started) * 1000)
        self.restart()
