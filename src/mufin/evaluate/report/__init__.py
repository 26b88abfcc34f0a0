"""A report: one page with all that can be said about a model on a split, and its parts as files beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mufin.data.catalogue import Catalogue
from mufin.errors import UsageError
from mufin.evaluate.report.attention import attention_section
from mufin.evaluate.report.examples import examples_section, modalities_section
from mufin.evaluate.report.figures import require
from mufin.evaluate.report.latency import latency_section
from mufin.evaluate.report.maps import adaptation_section, classifiers_section
from mufin.evaluate.report.page import Page, Section
from mufin.evaluate.report.scores import category_section, metrics_section, popularity_section
from mufin.evaluate.report.signals import signals_section
from mufin.evaluate.report.study import Study
from mufin.evaluate.report.suspects import suspects_section
from mufin.evaluate.report.trust import alpha_section, calibration_section
from mufin.evaluate.score import DEPTH, features_of, measured, predict_from
from mufin.model import Mufin
from mufin.progress import Progress
from mufin.version import VERSION

__all__ = ["check_report", "write_report"]

SECTIONS: tuple[Callable[[Study], Section], ...] = (
    metrics_section, category_section, popularity_section, examples_section, modalities_section,
    signals_section, suspects_section, calibration_section, attention_section, adaptation_section,
    classifiers_section, alpha_section, latency_section,
)  # fmt: skip


def check_report(path: Path) -> None:
    """An error if a report cannot be written there, or cannot be made at all."""
    require()
    if path.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{path}: a report is a page; give it a name that ends in .html")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}; make it first")


def write_report(
    model: Mufin,
    catalogue: Catalogue,
    path: Path,
    split: str = "test",
    propensity: tuple[float, float] = (0.55, 1.5),
    category: str = "category",
    progress: Progress | None = None,
) -> dict[str, float]:
    """Write the page at `path` and its figures and tables beside it; gives the metrics as `evaluate` does."""
    check_report(path)
    progress = progress or Progress(quiet=True)
    points = catalogue.split(split)
    if not len(points):
        raise UsageError(f"split {split!r} has no datapoints")
    started = time.perf_counter()
    features = features_of(model, catalogue.items, points.members, progress)
    encode_ms = (time.perf_counter() - started) * 1000 / len(points)
    predictions = predict_from(features, model, catalogue, points, DEPTH, progress)
    predictions = replace(predictions, encode_ms_per_point=encode_ms)
    study = Study(model, catalogue, points, features, predictions, propensity, category)
    sections = []
    with progress.task("Report", len(SECTIONS)) as task:
        for section in SECTIONS:
            sections.append(section(study))
            task.advance()
    facts = [
        ("split", f"{split}, {len(points):,} datapoints"),
        ("model", f"{len(model.labels):,} labels, D = {model.config.embed.dim}, mufin {VERSION}"),
    ]
    Page(f"How good the model is on “{split}”", facts, sections).write(path)
    return measured(predictions, catalogue, points, propensity)
