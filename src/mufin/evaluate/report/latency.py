"""How long each stage of an answer takes, one query at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from mufin.encode.features import Features, Groups
from mufin.evaluate.report.figures import Theme, bare
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.evaluate.report.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

QUERIES, WARM = 30, 3
K = 10
STAGES = (
    "texts: tokens, frozen layers",
    "pictures: decoding, frozen layers",
    "trained layers, self-attention",
    "search for the shortlist",
    "votes of the memory",
    "ranking: cross-attention, classifiers",
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
    """Milliseconds of each stage for one point."""
    model, settings = study.model, study.model.config
    items = study.catalogue.items.take(np.array(study.members(point)))
    group = Groups(np.array([0, len(items)]), np.arange(len(items)))
    clock = _Clock(model.labels.alive.device)
    texts = model.features(items.only("text"))
    clock.lap()
    pictures = model.features(items.only("image"))
    clock.lap()
    bags = model.embedder.embed(Features(texts.text, pictures.image), group)
    clock.lap()
    vector = bags.vectors()
    clock.restart()
    width = min(settings.retrieve.shortlist, len(model.labels.alive))
    model.index.search(vector, width, None, model.labels.alive)
    clock.lap()
    if len(model.memory):
        model.memory.votes(vector, settings.memory.neighbours, settings.memory.temperature)
    clock.lap()
    model.rank(bags, K)
    clock.lap()
    *before, search, votes, everything = clock.laps
    return [*before, search, votes, max(0.0, everything - search - votes)]


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
