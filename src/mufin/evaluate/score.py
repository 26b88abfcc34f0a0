"""Evaluate a model on a split of a catalogue, or on fill-in-the-blank questions."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.ragged import Ints, offsets_of
from mufin.data.split import Questions, Split
from mufin.encode.features import Features, Groups
from mufin.errors import UsageError
from mufin.evaluate import metrics
from mufin.model.mufin import Mufin
from mufin.model.untrained import scores
from mufin.progress import QUIET, Progress
from mufin.signals.evidence import read_some

DEPTH = 100  # labels predicted per datapoint, for R@100 and AUC
BATCH_POINTS = 1024  # ranked at once


@dataclass(frozen=True)
class Predictions:
    """Predicted labels of each datapoint of a split, as rows of the catalogue's labels, with timings."""

    labels: Ints  # (n, k), best first, padded with −1
    score: NDArray[np.float32]  # (n, k)
    probability: NDArray[np.float32]  # (n, k)
    ms_per_point: float  # embedding, search and ranking, without the frozen layers
    encode_ms_per_point: float  # the frozen layers; close to 0 if cached


def predict(
    model: Mufin, catalogue: Catalogue, points: Split, k: int = DEPTH, progress: Progress = QUIET
) -> Predictions:
    """Predict the k best labels of every datapoint, among the eligible labels of the catalogue."""
    started = time.perf_counter()
    features = encode_points(model, catalogue.items, points.members, progress)
    encode_ms = (time.perf_counter() - started) * 1000 / max(1, len(points))
    return replace(
        predict_from(features, model, catalogue, points, k, progress), encode_ms_per_point=encode_ms
    )


def predict_from(
    features: Features, model: Mufin, catalogue: Catalogue, points: Split, k: int, progress: Progress
) -> Predictions:
    """The same as `predict`, from features that are already computed."""
    started = time.perf_counter()
    to_catalogue = catalogue.labels.rows(model.labels.items.ids)  # (L of the model,)
    if not (to_catalogue >= 0).any():
        raise UsageError(
            f"none of the model's {len(model.labels):,} labels is in this catalogue; is it the right one?"
        )
    exclude = model.labels.align(points.exclude, catalogue.labels)
    allowed = torch.from_numpy(to_catalogue >= 0).to(model.labels.alive.device)
    parts = []
    groups = Groups(points.offsets, points.members)
    with progress.task("Predicting", len(points)) as task:
        for start in range(0, len(points), BATCH_POINTS):
            part = np.arange(start, min(start + BATCH_POINTS, len(points)), dtype=np.int64)
            ranked = model.rank(model.query(features, groups.take(part)), k, exclude[part], allowed)
            parts.append([v.cpu().numpy() for v in (ranked.labels, ranked.score, ranked.probability)])
            task.advance(len(part))
    rows, score, probability = (np.concatenate(same) for same in zip(*parts, strict=True))
    ms = (time.perf_counter() - started) * 1000 / max(1, len(points))
    return Predictions(np.where(rows >= 0, to_catalogue[rows], -1), score, probability, ms, 0.0)


def evaluate(
    model: Mufin,
    catalogue: Catalogue,
    split: str = "test",
    propensity: tuple[float, float] = (0.55, 1.5),
    progress: Progress = QUIET,
) -> dict[str, float]:
    """All metrics on a split; see `mufin.evaluate.metrics.evaluate` for names and units.

    `propensity` is (A, B) of Jain et al.; for Amazon data (0.6, 2.6). Label frequencies come from `train`, or
    from the split itself if the catalogue has no `train`.
    """
    points = catalogue.split(split)
    if not len(points):
        raise UsageError(f"split {split!r} has no datapoints")
    return score_predictions(
        predict(model, catalogue, points, progress=progress), catalogue, points, propensity
    )


def score_predictions(
    predictions: Predictions, catalogue: Catalogue, points: Split, propensity: tuple[float, float]
) -> dict[str, float]:
    """All metrics of these predictions, with timings."""
    weights = metrics.propensities(training_relevance(catalogue, points), *propensity)
    return metrics.evaluate(predictions.labels, points.relevance, weights) | {
        "ms_per_point": predictions.ms_per_point,
        "encode_ms_per_point": predictions.encode_ms_per_point,
        "points": len(points),
    }


def training_relevance(catalogue: Catalogue, points: Split) -> csr_matrix:
    """The relevance (n, L) that defines label frequencies: that of `train`, if the catalogue has it."""
    return catalogue.split("train").relevance if "train" in catalogue.splits else points.relevance


def answer(model: Mufin, catalogue: Catalogue, questions: Questions, progress: Progress = QUIET) -> Ints:
    """Choose the best completion of each query set, (q,); choices are scored as untrained labels."""
    queries = Groups(offsets_of([len(q) for q in questions.query]), np.concatenate(questions.query))
    used = np.concatenate([queries.members, questions.choices.ravel()])
    features = encode_points(model, catalogue.items, used, progress)
    chosen = np.zeros(len(questions), np.int64)
    with progress.task("Answering", len(questions)) as task:
        for i, choices in enumerate(questions.choices):
            query = queries.take(np.array([i], np.int64))
            found = scores(model, features, query, features, Groups.singles(choices))
            chosen[i] = int(found[0].argmax())
            task.advance()
    return chosen


def encode_points(model: Mufin, items: Items, rows: Ints, progress: Progress) -> Features:
    """The outputs of the frozen encoder layers for these items, from the cache if possible."""
    chosen = items.only(model.config.modalities)
    return read_some(model.embedder, model.signals, chosen, rows, progress, "Encoding")
