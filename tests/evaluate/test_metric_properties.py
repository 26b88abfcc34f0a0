"""Every metric equals its definition written with loops, for any ranking and any truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from mufin.evaluate import metrics


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a ranking (n, k) padded with −1, a truth (n, L) and a training relevance (m, L)."""
    n, labels, k = draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(1, 8))
    bits = st.lists(st.booleans(), min_size=labels, max_size=labels)
    truth = draw(st.lists(bits, min_size=n, max_size=n))
    train = draw(st.lists(bits, min_size=3, max_size=6))
    ranked = draw(
        st.lists(st.lists(st.integers(0, labels - 1), unique=True, max_size=k), min_size=n, max_size=n)
    )
    padded = [row + [-1] * (k - len(row)) for row in ranked]
    return np.array(padded, np.int64), np.array(truth, bool), np.array(train, bool)


def expected(ranking: np.ndarray, truth: np.ndarray, q: list[float]) -> dict[str, float]:
    """All metrics, by loops over datapoints and ranks."""
    n, found = len(ranking), {}
    rows = [[label for label in row if label >= 0] for row in ranking.tolist()]
    relevant = [{l for l, is_one in enumerate(row) if is_one} for row in truth.tolist()]

    def dcg(hits: list[float]) -> float:
        return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(hits))

    def per_point(values: list[float]) -> float:
        return sum(values) / n

    for k in (1, 3, 5):
        top = [[float(l in r) for l in row[:k]] for row, r in zip(rows, relevant, strict=True)]
        best = [[1.0] * max(1, min(k, len(r))) for r in relevant]
        gains = [[q[l] * (l in r) for l in row[:k]] for row, r in zip(rows, relevant, strict=True)]
        ideal = [sorted((q[l] for l in r), reverse=True)[:k] for r in relevant]
        found[f"P@{k}"] = 100 * per_point([sum(t) / k for t in top])
        found[f"nDCG@{k}"] = 100 * per_point([dcg(t) / dcg(b) for t, b in zip(top, best, strict=True)])
        most = sum(map(sum, ideal))
        found[f"PSP@{k}"] = 100 * sum(map(sum, gains)) / most if most else 0.0
        norms = [dcg(b) for b in best]
        got, most = (
            sum(dcg(g) / norm for g, norm in zip(some, norms, strict=True)) for some in (gains, ideal)
        )
        found[f"PSnDCG@{k}"] = 100 * got / most if most else 0.0
    for k in (10, 100):
        hits = [len(r & set(row[:k])) / max(1, len(r)) for row, r in zip(rows, relevant, strict=True)]
        found[f"R@{k}"] = 100 * per_point(hits)
    aucs, reciprocal = [], []
    for row, r in zip(rows, relevant, strict=True):
        good = [rank for rank, l in enumerate(row) if l in r]
        pairs = [(i, j) for i in good for j, l in enumerate(row) if l not in r]
        aucs.append(sum(i < j for i, j in pairs) / len(pairs) if pairs else float(bool(good)))
        reciprocal.append(1 / (good[0] + 1) if good else 0.0)
    found["AUC"], found["MRR"] = per_point(aucs), per_point(reciprocal)
    hit = {l for row, r in zip(rows, relevant, strict=True) for l in row[:5] if l in r}
    found["coverage@5"] = 100 * len(hit) / max(1, len(set().union(*relevant)))
    return found


@given(case=cases())
@settings(max_examples=300)
def test_metrics_are_their_definitions(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    ranking, truth, train = case
    n, counts = len(train), train.sum(axis=0)
    q = metrics.propensities(csr_matrix(train))
    c = (math.log(n) - 1) * 2.5**0.55
    assert q.tolist() == pytest.approx([1 + c * (count + 1.5) ** -0.55 for count in counts.tolist()])
    found = metrics.evaluate(ranking, csr_matrix(truth), q)
    assert found == pytest.approx(expected(ranking, truth, q.tolist()), abs=1e-9)
