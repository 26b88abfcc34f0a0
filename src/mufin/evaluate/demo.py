"""`mufin demo`: train on the embedded catalogue, compare with two baselines, show some predictions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.items import Items
from mufin.data.ragged import Ints
from mufin.data.split import Split
from mufin.evaluate import metrics
from mufin.evaluate.baselines import baselines
from mufin.evaluate.score import DEPTH, predict
from mufin.model.store import load
from mufin.progress import Progress
from mufin.train.fit import fit

EXAMPLE_ITEMS = 6
LABELS_PER_EXAMPLE = 5


@dataclass(frozen=True)
class Example:
    """The predictions for one item of the test split."""

    text: str
    pictures: int
    labels: list[tuple[str, bool]]  # text and relevance of each predicted label, best first


@dataclass(frozen=True)
class Demo:
    """The results of the demo."""

    scores: dict[str, dict[str, float]]  # method → metric → value
    examples: list[Example]
    train_seconds: float
    ms_per_point: float


def run_demo(catalogue: Catalogue, config: Config, out: Path, progress: Progress) -> Demo:
    """Train on `train` into `out`, and evaluate the model and the baselines on `test`."""
    started = time.perf_counter()
    fit(catalogue, config, out, quiet=progress.quiet, if_exists="overwrite")
    seconds = time.perf_counter() - started
    model = load(out, config.run.device)  # measured as it will be used
    train, test = catalogue.split("train"), catalogue.split("test")
    predictions = predict(model, catalogue, test, DEPTH, progress)
    progress.say("Baselines …")
    ranked = {**baselines(catalogue, test, DEPTH), "MUFIN": predictions.labels}
    inverse_propensity = metrics.propensities(train.relevance)
    scores = {
        name: metrics.evaluate(rows, test.relevance, inverse_propensity) for name, rows in ranked.items()
    }
    examples = _examples(catalogue, test, predictions.labels, np.random.default_rng(config.seed))
    return Demo(scores, examples, seconds, predictions.ms_per_point)


def _examples(catalogue: Catalogue, test: Split, predicted: Ints, rng: np.random.Generator) -> list[Example]:
    """A few random datapoints that have labels and a text, whether predicted well or not."""
    labelled = np.flatnonzero(np.diff(test.relevance.indptr) > 0)
    usable = [int(i) for i in rng.permutation(labelled) if _text(catalogue.items, test.members[i])]
    return [_example(catalogue, test, predicted, i) for i in usable[:EXAMPLE_ITEMS]]


def _example(catalogue: Catalogue, test: Split, predicted: Ints, point: int) -> Example:
    row = int(test.members[test.offsets[point]])
    relevant = set(_columns(test.relevance, point))
    labels = [
        (_text(catalogue.labels, label) or str(catalogue.labels.ids[int(label)]), int(label) in relevant)
        for label in predicted[point, :LABELS_PER_EXAMPLE]
        if label >= 0
    ]
    return Example(_text(catalogue.items, row), len(catalogue.items[row].images), labels)


def _columns(relation: csr_matrix, row: int) -> list[int]:
    return [int(column) for column in relation.indices[relation.indptr[row] : relation.indptr[row + 1]]]


def _text(items: Items, row: int) -> str:
    """The texts of an item, joined."""
    return " ".join(items.texts[int(row)].as_py() or ()).strip()
