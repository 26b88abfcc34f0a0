"""The report of `mufin evaluate --report`: one page about a model on a split, with its figures and tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from mufin.config import nearest_preset
from mufin.data.catalogue import Catalogue
from mufin.errors import UsageError
from mufin.evaluate.report.attention import attention_section
from mufin.evaluate.report.calibration import calibration_section
from mufin.evaluate.report.classifiers import adaptation_section, alpha_section, classifiers_section
from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.examples import examples_section, modalities_section
from mufin.evaluate.report.figures import require_packages
from mufin.evaluate.report.label_noise import label_noise_section
from mufin.evaluate.report.latency import latency_section
from mufin.evaluate.report.metrics import (
    category_section,
    metrics_section,
    popularity_section,
    signals_section,
)
from mufin.evaluate.report.page import Page, Section
from mufin.evaluate.score import DEPTH, encode_points, predict_from, score_predictions
from mufin.model.mufin import Mufin
from mufin.progress import QUIET, Progress, count
from mufin.version import VERSION

__all__ = ["check_report", "write_report"]

SECTIONS: tuple[Callable[[ReportData], Section], ...] = (
    metrics_section, category_section, popularity_section, examples_section, modalities_section,
    signals_section, label_noise_section, calibration_section, attention_section, adaptation_section,
    classifiers_section, alpha_section, latency_section,
)  # fmt: skip


def check_report(path: Path) -> None:
    """Raise if the report cannot be written to `path`, or if a package for it is missing."""
    require_packages()
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: a report is an HTML page; choose a name that ends in .html")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it first")


def write_report(
    model: Mufin,
    catalogue: Catalogue,
    path: Path,
    split: str = "test",
    propensity: tuple[float, float] = (0.55, 1.5),
    category: str = "category",
    progress: Progress = QUIET,
    source: str = "",
) -> dict[str, float]:
    """Write the page to `path`, with figures and tables beside it; return the metrics as `evaluate` does.

    `source` is the name of the catalogue in the header.
    """
    check_report(path)
    points = catalogue.split(split)
    if not len(points):
        raise UsageError(f"split {split!r} has no datapoints")
    started = time.perf_counter()
    features = encode_points(model, catalogue.items, points.members, progress)
    encode_ms = (time.perf_counter() - started) * 1000 / len(points)
    predictions = predict_from(features, model, catalogue, points, DEPTH, progress)
    predictions = replace(predictions, encode_ms_per_point=encode_ms)
    data = ReportData(model, catalogue, points, features, predictions, propensity, category)
    sections = []
    with progress.task("Report", len(SECTIONS)) as task:
        for section in SECTIONS:
            sections.append(section(data))
            task.advance()
    summary = _summary(data, split, source)
    Page(f"Evaluation on “{split}”", summary, sections).write(path)
    return score_predictions(predictions, catalogue, points, propensity)


def _summary(data: ReportData, split: str, source: str) -> list[tuple[str, str]]:
    """What was evaluated, on what, when and with which version."""
    model, catalogue = data.model, data.catalogue
    folder, saved = next(iter(model.saved.items()), (None, {}))
    preset, changed = nearest_preset(model.config)
    trained = saved.get("library", "")
    size = f"{count(len(catalogue.items), 'item')}, {count(len(catalogue.labels), 'label')}"
    return [
        ("run", f"{folder.name} ({folder})" if folder else "a model in memory"),
        ("model", f"{count(len(model.labels), 'label')}, D = {model.config.embed.dim}"),
        ("preset", f"{preset}, with {', '.join(changed)}" if changed else preset),
        ("catalogue", f"{source}: {size}" if source else size),
        ("split", f"{split}, {count(len(data), 'datapoint')}"),
        ("date", f"{datetime.now(UTC):%d %B %Y, %H:%M} UTC"),
        ("version", f"mufin {VERSION}" + (f", trained with {trained}" if trained else "")),
    ]
