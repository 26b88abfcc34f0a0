"""Labels that are likely missing (sure hits that are not in the truth) or wrong (truths scored lowest)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mufin.evaluate.report.page import Gallery, Row, Rows, Section, Table, Text
from mufin.evaluate.report.study import Study, name_of
from mufin.ragged import Ints

CHUNK = 256
SHOWN = 8  # in the page
LISTED = 200  # in the tables beside it
OFTEN = 5  # a label seen less in training may score low because it was never learnt
HEADER = ["datapoint", "its text", "label", "its text", "probability"]
Pairs = list[tuple[int, int, float]]  # point, label, probability


def suspects_section(study: Study) -> Section:
    """Where model and truth disagree most: worth a look by people."""
    missing, wrong = _missing(study), _wrong(study)
    return Section(
        "suspects",
        "Labels likely missing or wrong",
        [
            Text(
                "Likely missing: labels that the model is surest of and that the truth does not have. One a "
                "datapoint; a label at most three times."
            ),
            Gallery([_missing_row(study, *pair) for pair in missing[:SHOWN]]),
            Table("likely-missing", HEADER, _table(study, missing), left=4, most=SHOWN),
            Text(
                "Likely wrong: relevant labels that the model finds least probable, among those that at "
                f"least {OFTEN} training points have. Beside each, what the model would have said."
            ),
            Gallery([_wrong_row(study, *pair) for pair in wrong[:SHOWN]]),
            Table("likely-wrong", HEADER, _table(study, wrong), left=4, most=SHOWN),
        ],
    )


def _missing(study: Study) -> Pairs:
    found = study.predictions
    chance = np.where(study.relevant | (found.labels < 0), -1.0, found.probability)
    place = chance.argmax(axis=1)
    points = np.arange(len(study))
    best = chance[points, place]
    order = [int(i) for i in np.argsort(-best, kind="stable") if best[i] >= 0]
    return _varied((i, int(found.labels[i, place[i]]), float(best[i])) for i in order)


def _wrong(study: Study) -> Pairs:
    rows, labels, chance = truth_probability(study)
    usable = np.flatnonzero((study.frequency[labels] >= OFTEN) & (chance >= 0))
    order = usable[np.argsort(chance[usable], kind="stable")]
    first = order[np.sort(np.unique(rows[order], return_index=True)[1])]  # the lowest of each datapoint
    return _varied((int(rows[i]), int(labels[i]), float(chance[i])) for i in first)


def _varied(pairs: Iterable[tuple[int, int, float]]) -> Pairs:
    """The first pairs, no label more than three times."""
    kept: Pairs = []
    times: Counter[int] = Counter()
    for point, label, chance in pairs:
        times[label] += 1
        if times[label] <= 3:
            kept.append((point, label, chance))
        if len(kept) == LISTED:
            break
    return kept


def truth_probability(study: Study) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Of every relevant pair its point, its label and its probability; −1 where the model lacks the label."""
    truth = study.points.relevance
    labels = truth.indices.astype(np.int64)
    rows = np.repeat(np.arange(len(study)), np.diff(truth.indptr))
    chance = np.full(len(labels), -1.0)
    for start in range(0, len(study), CHUNK):
        points = np.arange(start, min(start + CHUNK, len(study)))
        first, last = truth.indptr[points[0]], truth.indptr[points[-1] + 1]
        if last > first:
            place = np.arange(first, last) - truth.indptr[rows[first:last]]
            table = np.full((len(points), int(place.max()) + 1), -1, np.int64)
            table[rows[first:last] - start, place] = labels[first:last]
            found = _probability(study, points, torch.from_numpy(table))
            chance[first:last] = found[rows[first:last] - start, place]
    return rows, labels, chance


@torch.no_grad()
def _probability(study: Study, points: Ints, table: Tensor) -> npt.NDArray[np.float64]:
    """The probabilities of labels (B, K), rows of the catalogue, beside what was predicted for the points."""
    model, found = study.model, study.predictions
    device = model.labels.alive.device
    rows = torch.from_numpy(study.model_rows)[table.clamp(min=0)].where(table >= 0, -1).to(device)
    predicted = torch.from_numpy(found.labels[points])
    same = (table[:, :, None] == predicted[:, None, :]) & (table >= 0)[:, :, None]  # (B, K, k)
    known = torch.from_numpy(found.probability[points])[:, None, :].where(same, 0.0).sum(-1)
    hits = torch.from_numpy(found.score[points]).to(device)
    fresh = model.mixture.score(model.evidence(study.query(points), rows))
    fresh = fresh.masked_fill(same.any(-1).to(device), -torch.inf)
    chance = model.mixture.probability(torch.cat([hits, fresh], dim=1))[:, hits.shape[1] :].cpu()
    chance = torch.where(same.any(-1), known, chance)
    return chance.where(rows.cpu() >= 0, -1.0).double().numpy()


def _missing_row(study: Study, point: int, label: int, chance: float) -> Row:
    have = ", ".join(name_of(study.catalogue.labels, row) for row in study.truth(point)[:8])
    query = study.point_card(point, f"has: {have}" if have else "has no labels")
    return Row(query, [study.label_card(label, False, f"probability {chance:.1%}")])


def _wrong_row(study: Study, point: int, label: int, chance: float) -> Row:
    suspect = study.label_card(label, True, f"in the truth; probability {chance:.2%}")
    return Row(study.point_card(point), [suspect, *study.best(point, 3)])


def _table(study: Study, pairs: Pairs) -> Rows:
    items, labels = study.catalogue.items, study.catalogue.labels
    return [
        [
            " + ".join(str(items.ids[row].as_py()) for row in study.members(point)),
            name_of(items, study.members(point)[0]),
            str(labels.ids[label].as_py()),
            name_of(labels, label),
            chance,
        ]
        for point, label, chance in pairs
    ]
