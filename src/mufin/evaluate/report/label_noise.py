"""Section: labels that are likely missing (confident hits not in the truth) or wrong (improbable truths)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mufin.data.ragged import Ints
from mufin.evaluate.report.data import ReportData, display_name
from mufin.evaluate.report.page import Gallery, QueryRow, Rows, Section, Table, Text

BATCH_POINTS = 256
PAIRS_ON_PAGE = 8
PAIRS_IN_FILE = 200
PAIRS_PER_LABEL = 3
MIN_FREQUENCY = 5  # a rarer label may be improbable only because it was hardly trained
ALTERNATIVES = 3  # hits shown beside a label that is likely wrong
TRUTHS_ON_CARD = 8
HEADER = ["datapoint", "its text", "label", "its text", "probability"]
Pairs = list[tuple[int, int, float]]  # datapoint, label, probability


def label_noise_section(data: ReportData) -> Section:
    """Where model and truth disagree most; worth a manual review."""
    section = Section("label-noise", "Likely label errors")
    missing, wrong = _likely_missing(data), _likely_wrong(data)
    if missing:
        section.blocks.extend(
            [
                Text(
                    "Likely missing: the most probable predictions that the truth does not contain, at most "
                    f"one per datapoint and, in the file, {PAIRS_PER_LABEL} per label."
                ),
                Gallery([_missing_row(data, *pair) for pair in _once_per_label(missing)]),
                Table(
                    "likely-missing", HEADER, _table(data, missing), text_columns=4, max_rows=PAIRS_ON_PAGE
                ),
            ]
        )
    if wrong:
        section.blocks.extend(
            [
                Text(
                    "Likely wrong: the least probable labels of the truth, among those with at least "
                    f"{MIN_FREQUENCY} training points. Beside each, the model's own predictions."
                ),
                Gallery([_wrong_row(data, *pair) for pair in _once_per_label(wrong)]),
                Table("likely-wrong", HEADER, _table(data, wrong), text_columns=4, max_rows=PAIRS_ON_PAGE),
            ]
        )
    if section.empty:
        section.blocks.append(Text("Model and truth agree everywhere."))
    return section


def _once_per_label(pairs: Pairs) -> Pairs:
    """The first pair of each label, as many as fit on the page."""
    first = {label: (point, label, probability) for point, label, probability in reversed(pairs)}
    return sorted(first.values(), key=pairs.index)[:PAIRS_ON_PAGE]


def _likely_missing(data: ReportData) -> Pairs:
    """The most probable irrelevant hit of each datapoint, most probable first."""
    found = data.predictions
    probability = np.where(data.relevant | (found.labels < 0), -1.0, found.probability)
    rank = probability.argmax(axis=1)
    best = probability[np.arange(len(data)), rank]
    order = [int(i) for i in np.argsort(-best, kind="stable") if best[i] >= 0]
    return _limit_per_label((i, int(found.labels[i, rank[i]]), float(best[i])) for i in order)


def _likely_wrong(data: ReportData) -> Pairs:
    """The least probable relevant label of each datapoint, least probable first."""
    rows, labels, probability = truth_probability(data)
    usable = np.flatnonzero((data.frequency[labels] >= MIN_FREQUENCY) & (probability >= 0))
    order = usable[np.argsort(probability[usable], kind="stable")]
    first = order[np.sort(np.unique(rows[order], return_index=True)[1])]
    return _limit_per_label((int(rows[i]), int(labels[i]), float(probability[i])) for i in first)


def _limit_per_label(pairs: Iterable[tuple[int, int, float]]) -> Pairs:
    """The first pairs, at most three per label."""
    kept: Pairs = []
    times: Counter[int] = Counter()
    for point, label, probability in pairs:
        times[label] += 1
        if times[label] <= PAIRS_PER_LABEL:
            kept.append((point, label, probability))
        if len(kept) == PAIRS_IN_FILE:
            break
    return kept


def truth_probability(data: ReportData) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
    """Datapoint, label and probability of every relevant pair; −1 if the model lacks the label."""
    truth = data.points.relevance
    labels = truth.indices.astype(np.int64)
    rows = np.repeat(np.arange(len(data)), np.diff(truth.indptr))
    probability = np.full(len(labels), -1.0)
    for start in range(0, len(data), BATCH_POINTS):
        points = np.arange(start, min(start + BATCH_POINTS, len(data)))
        first, last = truth.indptr[points[0]], truth.indptr[points[-1] + 1]
        if last > first:
            column = np.arange(first, last) - truth.indptr[rows[first:last]]
            table = np.full((len(points), int(column.max()) + 1), -1, np.int64)
            table[rows[first:last] - start, column] = labels[first:last]
            found = _probability(data, points, torch.from_numpy(table))
            probability[first:last] = found[rows[first:last] - start, column]
    return rows, labels, probability


@torch.no_grad()
def _probability(data: ReportData, points: Ints, table: Tensor) -> npt.NDArray[np.float64]:
    """The probabilities of labels (B, K), rows of the catalogue, if ranked with the predictions."""
    model, found = data.model, data.predictions
    device = model.labels.alive.device
    rows = torch.from_numpy(data.model_rows)[table.clamp(min=0)].where(table >= 0, -1).to(device)
    predicted = torch.from_numpy(found.labels[points])
    same = (table[:, :, None] == predicted[:, None, :]) & (table >= 0)[:, :, None]  # (B, K, k)
    known = torch.from_numpy(found.probability[points])[:, None, :].where(same, 0.0).sum(-1)
    hits = torch.from_numpy(found.score[points]).to(device)
    evidence = model.evidence(data.query(points), rows)
    unranked = model.mixture.score(evidence)
    unranked = unranked.masked_fill(same.any(-1).to(device), -torch.inf)
    probability = model.mixture.calibration.probability(
        torch.cat([hits, unranked], dim=1), evidence.familiarity
    )
    probability = torch.where(same.any(-1), known, probability[:, hits.shape[1] :].cpu())
    return probability.where(rows.cpu() >= 0, -1.0).double().numpy()


def _missing_row(data: ReportData, point: int, label: int, probability: float) -> QueryRow:
    truth = [display_name(data.catalogue.labels, row) for row in data.truth(point)[:TRUTHS_ON_CARD]]
    query = data.point_card(point, f"labels: {', '.join(truth)}" if truth else "no labels")
    card = data.label_card(label, None, f"probability {probability:.1%}", "not in the truth")
    return QueryRow(query, [card])


def _wrong_row(data: ReportData, point: int, label: int, probability: float) -> QueryRow:
    wrong = data.label_card(label, None, f"probability {probability:.2%}", "in the truth")
    others = data.hit_cards(point, ALTERNATIVES + 1)
    same = np.flatnonzero(data.predictions.labels[point, : len(others)] == label)  # it may be a hit, too
    others = [card for rank, card in enumerate(others) if rank not in same]
    return QueryRow(data.point_card(point), [wrong, *others[:ALTERNATIVES]])


def _table(data: ReportData, pairs: Pairs) -> Rows:
    items, labels = data.catalogue.items, data.catalogue.labels
    return [
        [
            " + ".join(str(items.ids[row].as_py()) for row in data.members(point)),
            display_name(items, data.members(point)[0]),
            str(labels.ids[label].as_py()),
            display_name(labels, label),
            probability,
        ]
        for point, label, probability in pairs
    ]
