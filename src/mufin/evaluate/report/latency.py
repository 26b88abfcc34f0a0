"""Section: the latency of each stage of `recommend`, one query at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from mufin.encode.features import Groups
from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.figures import Theme, clean_axes
from mufin.evaluate.report.page import Figure, Rows, Section, Table, Text
from mufin.progress import count
from mufin.runtime.autograd import inference_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

TIMED_QUERIES, WARMUP_QUERIES = 30, 3
HITS = 10
STAGES = (
    "features: tokens, images, frozen layers, words",
    "query: trained layers, self-attention",
    "rank: candidates and evidence of all signals",
    "hits: ids, texts, parts",
)


def latency_section(data: ReportData) -> Section:
    """Milliseconds per stage for single queries, from text and images to hits, without any cache."""
    points = data.sample(TIMED_QUERIES + WARMUP_QUERIES)
    times = np.array([_times(data, int(point)) for point in points])  # (q, stages) in ms
    times = times[WARMUP_QUERIES:] if len(times) > WARMUP_QUERIES else times
    median = np.median(times, axis=0)
    stages = dict(zip(STAGES, times.T, strict=True)) | {"total": times.sum(axis=1)}
    rows: Rows = [[name, *_summary(values)] for name, values in stages.items()]

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        y = np.arange(len(STAGES))
        bars = axes.barh(y, median, color=theme.good, height=0.65)
        axes.bar_label(bars, [f"{value:.2f} ms" for value in median], padding=3)
        axes.set_yticks(y, STAGES)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.18 * max(median.max(), 1e-3))
        axes.set_xlabel("median, ms")
        axes.set_ylabel("stage")
        clean_axes(axes, theme, "x")

    device = data.model.labels.alive.device.type
    kind = f"{device}, {count(torch.get_num_threads(), 'thread')}" if device == "cpu" else device
    batched = data.predictions.ms_per_point
    return Section(
        "latency",
        "Latency by stage",
        [
            Text(
                f"{len(times)} queries, one at a time, without caches ({kind}). In batches, everything after "
                f"the frozen layers took {batched:.2f} ms per datapoint."
            ),
            Figure("latency", "Median time per stage of a single query.", _alt(median), draw, (8.0, 3.0)),
            Table("latency", ["stage, ms", "median", "95th percentile", "mean"], rows),
        ],
    )


def _summary(values: np.ndarray) -> list[float]:
    return [float(np.median(values)), float(np.quantile(values, 0.95)), float(values.mean())]


def _alt(median: np.ndarray) -> str:
    return "; ".join(f"{name} {value:.2f} ms" for name, value in zip(STAGES, median, strict=True))


@torch.no_grad()
def _times(data: ReportData, point: int) -> list[float]:
    """Milliseconds per stage for one datapoint, following `recommend` step by step."""
    model = data.model
    items = data.catalogue.items.take(np.array(data.members(point)))
    group = Groups(np.array([0, len(items)]), np.arange(len(items)))
    with inference_mode(model.labels.alive.device):
        clock = _Clock(model.labels.alive.device)
        features = model.features(items)
        clock.lap()
        query = model.query(features, group)
        clock.lap()
        ranked = model.rank(query, HITS)
        clock.lap()
        model.hits(ranked)
        clock.lap()
    return clock.laps


class _Clock:
    """A stopwatch that synchronises with the device."""

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
