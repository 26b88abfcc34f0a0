"""Sparse one-vs-rest classifiers: against a dense minimum, label by label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, random_array

from mufin.encode.rows import SparseRows
from mufin.rank import one_vs_rest as module
from mufin.rank.one_vs_rest import Pairs, one_vs_rest

N, V, L = 60, 30, 5


def made() -> tuple[csr_matrix, np.ndarray]:
    rng = np.random.default_rng(3)
    points = csr_matrix(random_array((N, V), density=0.2, rng=rng, dtype=np.float32))
    relevance = points.toarray() @ rng.normal(size=(V, L)) > 0.6
    relevance[:, 4] = False  # a label without positives
    return points, relevance


def all_pairs(relevance: np.ndarray) -> Pairs:
    positive = torch.from_numpy(np.flatnonzero(relevance))
    return Pairs.of(positive, torch.arange(N * L), L)


def objective(w: np.ndarray, b: float, points: np.ndarray, y: np.ndarray) -> float:
    loss = np.logaddexp(0, -np.where(y, 1, -1) * (points @ w + b)).sum()
    return float((w @ w + b * b) / 2 + module.COST * loss)


def test_pairs_are_sorted_by_label_and_positives_stay() -> None:
    pairs = Pairs.of(torch.tensor([7, 0]), torch.tensor([3, 7, 9, 3]), L)  # keys point · 5 + label
    assert pairs.labels.tolist() == [0, 2, 3, 4]
    assert pairs.points.tolist() == [0, 1, 0, 1]
    assert pairs.relevant.tolist() == [True, True, False, False]


def test_each_label_is_near_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_WEIGHT", 0.0)
    monkeypatch.setattr(module, "STEPS", 300)
    points, relevance = made()
    weights, bias = one_vs_rest(SparseRows.of(points), all_pairs(relevance), L)
    dense = points.toarray()
    for label in range(L):
        y, w = relevance[:, label], weights.csr[[label]].toarray()[0]
        own = (dense[y] != 0).any(0)  # the columns of its positives
        assert not w[~own].any()
        x = dense[:, own]
        best = minimize(lambda v, x=x, y=y: objective(v[:-1], v[-1], x, y), np.zeros(own.sum() + 1))
        assert objective(w, float(bias[label]), dense, y) == pytest.approx(best.fun, rel=1e-2)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points, relevance = made()
    whole, bias = one_vs_rest(SparseRows.of(points), all_pairs(relevance), L)
    monkeypatch.setitem(module.CELLS_PER_BLOCK, "cpu", 1)
    parts, bias_of_parts = one_vs_rest(SparseRows.of(points), all_pairs(relevance), L)
    assert torch.equal(whole.columns, parts.columns)
    assert torch.equal(whole.offsets, parts.offsets)
    assert torch.allclose(whole.values, parts.values, atol=1e-4)
    assert torch.allclose(bias, bias_of_parts, atol=1e-4)


def test_small_weights_are_dropped() -> None:
    points, relevance = made()
    weights, _ = one_vs_rest(SparseRows.of(points), all_pairs(relevance), L)
    assert len(weights.values)
    assert float(weights.values.abs().min()) >= module.MIN_WEIGHT
