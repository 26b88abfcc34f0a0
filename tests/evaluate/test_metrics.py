"""Metrics agree with napkinXC and with simple loops, also in edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

from mufin.errors import UsageError
from mufin.evaluate import metrics
from mufin.evaluate.metrics import calibration_curve, expected_calibration_error
from mufin.evaluate.per_point import IntArray, find_relevant

KEYS = [
    *("P@1", "P@3", "P@5", "nDCG@1", "nDCG@3", "nDCG@5", "R@10", "R@100"),
    *("PSP@1", "PSP@3", "PSP@5", "PSnDCG@1", "PSnDCG@3", "PSnDCG@5", "AUC", "MRR", "coverage@5"),
]


def random_case(
    seed: int, n: int = 200, labels: int = 60, k: int = 12, padded: bool = True
) -> tuple[IntArray, csr_matrix]:
    """A ranking of unique labels with padded rows, and a truth with some empty rows."""
    rng = np.random.default_rng(seed)
    truth = csr_matrix(rng.random((n, labels)) < 0.08 * rng.integers(0, 3, (n, 1)))
    predicted = np.argsort(rng.random((n, labels)) - 0.4 * truth.toarray(), axis=1)[:, :k].astype(np.int64)
    if padded:
        predicted[np.arange(k) >= rng.integers(0, 2 * k, (n, 1))] = -1
    return predicted, truth


def relevant_sets(truth: csr_matrix) -> list[set[int]]:
    return [set(row.nonzero()[1].tolist()) for row in truth]


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_equals_napkinxc(seed: int, padded: bool) -> None:
    napkin = pytest.importorskip("napkinxc.metrics")
    predicted, truth = random_case(seed, padded=padded)
    train = random_case(seed + 100)[1]
    q = metrics.propensities(train)
    assert q == pytest.approx(napkin.Jain_et_al_inverse_propensity(train), abs=1e-9)
    hits, ranking = find_relevant(predicted, truth), predicted.tolist()
    for ours, theirs in [
        (metrics.precision(hits, 10), napkin.precision_at_k(truth, ranking, k=10)),
        (metrics.ndcg(hits, 10), napkin.ndcg_at_k(truth, ranking, k=10)),
        (metrics.recall(hits, 10), napkin.recall_at_k(truth, ranking, k=10)),
        (metrics.psp(hits, q, 10), napkin.psprecision_at_k(truth, ranking, q, k=10)),
        (metrics.psndcg(hits, q, 10), napkin.psndcg_at_k(truth, ranking, q, k=10)),
        (metrics.coverage(hits, 10), napkin.coverage_at_k(truth, ranking, k=10)),
    ]:
        assert ours == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(("a", "b"), [(0.6, 2.6), (0.5, 0.4)])
def test_propensities_of_other_data_sets_equal_napkinxc(a: float, b: float) -> None:
    napkin = pytest.importorskip("napkinxc.metrics")
    train = random_case(5)[1]
    assert metrics.propensities(train, a, b) == pytest.approx(
        napkin.Jain_et_al_inverse_propensity(train, A=a, B=b), abs=1e-9
    )


@pytest.mark.parametrize("k", [1, 4, 100])
@pytest.mark.parametrize("seed", range(3))
def test_auc_counts_pairs(seed: int, k: int) -> None:
    predicted, truth = random_case(seed)
    values = []
    for row, relevant in zip(predicted.tolist(), relevant_sets(truth), strict=True):
        top = [label for label in row[:k] if label >= 0]
        right = [
            i < j
            for i, hit in enumerate(top)
            for j, miss in enumerate(top)
            if hit in relevant and miss not in relevant
        ]
        only_hits = bool(top) and relevant.issuperset(top)
        values.append(float(only_hits) if not right else sum(right) / len(right))
    assert metrics.auc(find_relevant(predicted, truth), k) == pytest.approx(np.mean(values))


@pytest.mark.parametrize("seed", range(3))
def test_mrr_finds_the_first_hit(seed: int) -> None:
    predicted, truth = random_case(seed)
    values = [
        next((1 / place for place, label in enumerate(row, 1) if label in relevant), 0.0)
        for row, relevant in zip(predicted.tolist(), relevant_sets(truth), strict=True)
    ]
    assert metrics.mrr(find_relevant(predicted, truth)) == pytest.approx(np.mean(values))


def test_blocks_do_not_change_the_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted, truth = random_case(0)
    whole = find_relevant(predicted, truth)
    monkeypatch.setattr("mufin.evaluate.per_point._LOOKUP_CELLS", 31)
    parts = find_relevant(predicted, truth)
    assert (whole.rows == parts.rows).all()
    assert (whole.ranks == parts.ranks).all()
    assert (whole.labels == parts.labels).all()


def test_evaluate_names_everything_in_percent() -> None:
    predicted, truth = random_case(1)
    q = metrics.propensities(truth)
    table = metrics.evaluate(predicted, truth, q)
    assert sorted(table) == sorted(KEYS)
    hits = find_relevant(predicted, truth)
    assert table["P@3"] == pytest.approx(100 * metrics.precision(hits, 3)[2])
    assert table["PSnDCG@5"] == pytest.approx(100 * metrics.psndcg(hits, q)[4])
    assert table["coverage@5"] == pytest.approx(100 * metrics.coverage(hits)[4])
    assert table["AUC"] == metrics.auc(hits)
    assert table["MRR"] == metrics.mrr(hits)
    assert all(type(value) is float for value in table.values())
    assert not any(key.startswith("PS") for key in metrics.evaluate(predicted, truth))


def test_the_best_ranking_scores_100() -> None:
    truth = csr_matrix(np.eye(6, dtype=bool)[:, ::-1])
    predicted = np.array([[5 - i] + [j for j in range(6) if j != 5 - i] for i in range(6)])
    table = metrics.evaluate(predicted, truth, metrics.propensities(truth))
    perfect = {key: 100.0 for key in KEYS if "@" in key} | {"AUC": 1.0, "MRR": 1.0}
    perfect |= {"P@3": 100 / 3, "P@5": 20.0}  # one relevant label each
    assert table == pytest.approx(perfect)


def test_missing_predictions_are_misses() -> None:
    hits = find_relevant([[0], [1]], csr_matrix([[1, 0], [1, 0]], dtype=bool))
    assert metrics.precision(hits, 4).tolist() == [1 / 2, 1 / 4, 1 / 6, 1 / 8]
    assert metrics.recall(hits, 3).tolist() == [0.5, 0.5, 0.5]


def test_nothing_relevant_and_nothing_returned_score_0() -> None:
    q = np.ones(3)
    nothing_relevant = metrics.evaluate([[0, 1], [2, 1]], csr_matrix(np.zeros((2, 3), bool)), q)
    nothing_returned = metrics.evaluate([[-1, -1]], csr_matrix([[1, 0, 0]], dtype=bool), q)
    assert set(nothing_relevant.values()) == set(nothing_returned.values()) == {0.0}


def test_a_datapoint_without_relevant_labels_stays_in_the_average() -> None:
    table = metrics.evaluate([[0], [0]], csr_matrix([[1, 0], [0, 0]], dtype=bool), np.ones(2))
    assert (table["P@1"], table["nDCG@1"], table["R@10"], table["MRR"]) == (50.0, 50.0, 50.0, 0.5)
    assert table["PSP@1"] == table["PSnDCG@1"] == 100.0  # nothing could be reached there


def test_a_single_label() -> None:
    table = metrics.evaluate([[0]], csr_matrix([[1]], dtype=bool), np.ones(1))
    assert (table["nDCG@5"], table["P@5"], table["AUC"], table["MRR"]) == (100.0, 20.0, 1.0, 1.0)


def test_any_form_of_the_truth_gives_the_same_numbers() -> None:
    predicted, truth = random_case(2)
    expected = metrics.evaluate(predicted, truth)
    doubled = csr_matrix(
        (np.ones(2 * truth.nnz, int), np.repeat(truth.indices, 2), 2 * truth.indptr), shape=truth.shape
    )
    zeros = csr_matrix(truth, dtype=np.float32) - 0 * csr_matrix(np.ones(truth.shape, np.float32))
    forms: list[Any] = [doubled, zeros, csr_array(truth), truth.astype(np.int8)]
    for form in forms:
        before = form.nnz
        assert metrics.evaluate(predicted.astype(np.int32), form) == pytest.approx(expected)
        assert form.nnz == before  # the caller's matrix is left alone


@pytest.mark.parametrize(
    ("predicted", "message"),
    [
        ([0, 1], "integers"),
        ([[0.5], [1.0]], "integers"),
        ([[], []], "integers"),
        ([[0]], "1 predicted rows"),
        ([[0], [3]], "expected −1…2"),
        ([[-2], [0]], "expected −1…2"),
        ([[-1, 0], [0, 1]], "pad the end"),
    ],
)
def test_invalid_rankings(predicted: list[list[int]], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_relevant(predicted, csr_matrix(np.zeros((2, 3), bool)))


def test_other_wrong_uses() -> None:
    hits = find_relevant([[0]], csr_matrix([[1, 0]], dtype=bool))
    with pytest.raises(UsageError, match="k is 0"):
        metrics.precision(hits, 0)
    with pytest.raises(UsageError, match=r"expected one per label, \(2,\)"):
        metrics.psp(hits, np.ones(3))
    with pytest.raises(UsageError, match="no rows"):
        metrics.propensities(csr_matrix(np.zeros((0, 3), bool)))
    with pytest.raises(UsageError, match="one choice per answer"):
        metrics.fitb_accuracy([1, 2], [1])


def test_fitb_accuracy() -> None:
    assert metrics.fitb_accuracy(np.array([0, 1, 2]), np.array([0, 1, 3])) == pytest.approx(2 / 3)


def test_calibration_error_against_a_loop():
    rng = np.random.default_rng(3)
    chance = np.append(rng.random(500), [0.0, 1.0])  # both ends belong to a bin
    hit = rng.random(502) < chance**2
    expected = 0.0
    for start in np.arange(15) / 15:
        own = [i for i, p in enumerate(chance) if min(int(p * 15), 14) == round(start * 15)]
        expected += abs(chance[own].mean() - hit[own].mean()) * len(own) / 502
    assert expected_calibration_error(chance, hit) == pytest.approx(expected)
    count, predicted, observed = calibration_curve(chance, hit)
    assert count.sum() == 502
    assert (predicted[1:] > predicted[:-1]).all()
    assert ((observed >= 0) & (observed <= 1)).all()


def test_a_certain_and_correct_model_has_no_calibration_error():
    assert expected_calibration_error([1.0, 0.0, 1.0], [True, False, True]) == 0
    assert expected_calibration_error([], []) == 0
    with pytest.raises(UsageError, match="expected one each"):
        calibration_curve([0.5], [True, False])
