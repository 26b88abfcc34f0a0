"""Metrics per datapoint add up to the overall ones; intervals and p-values are calibrated."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix, random

from mufin.errors import UsageError
from mufin.evaluate import bootstrap, metrics
from mufin.evaluate.bootstrap import intervals, paired
from mufin.evaluate.per_point import PointMetrics, find_relevant, point_metrics


def world(n: int = 300, labels: int = 40, seed: int = 0, skill: float = 1.0) -> tuple[np.ndarray, csr_matrix]:
    """A truth, and a ranking that prefers relevant labels by `skill`."""
    rng = np.random.default_rng(0)
    truth = csr_matrix(random(n, labels, 0.1, "csr", random_state=rng) > 0)
    noise = np.random.default_rng(seed).normal(size=(n, labels))
    ranking = np.argsort(-(noise + skill * truth.toarray()), axis=1)
    return ranking[:, :30], truth


def test_sums_over_points_are_the_metrics():
    ranking, truth = world()
    ranking[3, 4:] = -1  # fewer predictions
    q = metrics.propensities(truth)
    expected = metrics.evaluate(ranking, truth, q)
    found = point_metrics(find_relevant(ranking, truth), q).values()
    assert set(expected) - set(found) == {"coverage@5"}
    assert found == pytest.approx({name: expected[name] for name in found}, abs=1e-10)


def test_intervals_cover_the_true_value_95_percent_of_the_time():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        hits = (rng.random((80, 1)) < 0.3).astype(float)
        found = intervals(PointMetrics(("P@1",), hits, np.ones((80, 1))), samples=300)["P@1"]
        held += found[0] <= 30 <= found[1]
    assert 180 <= held <= 198


def test_intervals_match_a_plain_bootstrap():
    ranking, truth = world(n=60)
    q = metrics.propensities(truth)
    low, high = intervals(point_metrics(find_relevant(ranking, truth), q), samples=2000)["PSP@5"]
    rng = np.random.default_rng(7)
    drawn = []
    for _ in range(2000):
        rows = rng.integers(0, 60, 60)
        drawn.append(100 * metrics.psp(find_relevant(ranking[rows], truth[rows]), q, 5)[4])
    assert (low, high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.8)


def test_grouping_hardly_changes_an_interval(monkeypatch: pytest.MonkeyPatch):
    ranking, truth = world(n=2000)
    measured = point_metrics(find_relevant(ranking, truth), metrics.propensities(truth))
    whole = intervals(measured)["nDCG@5"]
    monkeypatch.setattr(bootstrap, "MAX_GROUPS", 500)
    assert intervals(measured)["nDCG@5"] == pytest.approx(whole, abs=0.5)


def test_a_better_ranking_is_significant_and_an_equal_one_is_not():
    _, truth = world()
    q = metrics.propensities(truth)
    good, bad, other = (
        point_metrics(find_relevant(world(seed=seed, skill=skill)[0], truth), q)
        for seed, skill in ((1, 2.0), (2, 0.5), (3, 2.0))
    )
    better = paired(good, bad, samples=2000)["P@5"]
    assert better.value == pytest.approx(good.values()["P@5"] - bad.values()["P@5"])
    assert better.low > 0
    assert better.p < 0.001
    alike = paired(good, other, samples=2000)["P@5"]
    assert alike.low < 0 < alike.high
    assert alike.p > 0.05
    same = paired(good, good, samples=200)["MRR"]
    assert (same.value, same.p) == (0.0, 1.0)


def test_p_is_uniform_where_nothing_differs():
    rng = np.random.default_rng(5)
    small = 0
    for seed in range(200):
        run, base = (PointMetrics(("MRR",), values, np.ones((40, 1))) for values in rng.random((2, 40, 1)))
        found = paired(run, base, samples=200, seed=seed)
        small += found["MRR"].p < 0.1
    assert 8 <= small <= 34


@pytest.mark.parametrize("samples", [79, 80, 200, 999, 1000])
def test_an_interval_excludes_zero_exactly_if_p_is_below_5_percent(samples: int):
    rng = np.random.default_rng(samples)
    names = tuple(f"m{i}" for i in range(300))
    base = rng.random((25, 300))
    run = base + np.linspace(-0.4, 0.4, 300) * rng.random((25, 300)) + 0.2 * rng.normal(size=(25, 300))
    run[:, :4] = base[:, :4] + np.array([0.0, 1e-17, 0.5, -0.5])
    ones = np.ones((25, 300))
    found = paired(PointMetrics(names, run, ones), PointMetrics(names, base, ones), samples)
    excluded = [not d.low <= 0 <= d.high for d in found.values()]
    assert excluded == [d.p < 0.05 for d in found.values()]
    assert 30 < sum(excluded) < 270
    assert (found["m0"].p, found["m1"].p) == (1.0, 1.0)


def test_runs_on_different_points_cannot_be_paired():
    (first, truth), (second, other) = world(n=20), world(n=30)
    measured = [point_metrics(find_relevant(r, t), np.ones(40)) for r, t in ((first, truth), (second, other))]
    with pytest.raises(UsageError, match="same datapoints"):
        paired(*measured)
