"""Projecting to 2-D keeps clusters together and is reproducible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mufin.evaluate.report import classifiers
from mufin.retrieve.project_2d import TSNE_MIN_VECTORS, Floats, project_2d
from mufin.serve import layout


def three_clusters() -> Floats:
    random = np.random.default_rng(0)
    groups = random.normal(size=(3, 1, 16)) + 0.1 * random.normal(size=(3, 20, 16))
    vectors = groups.reshape(60, 16).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_clusters_stay_together() -> None:
    fractions: list[float] = []
    points, how = project_2d(three_clusters(), fractions.append)
    assert how == "t-SNE"
    assert fractions
    assert fractions == sorted(fractions)
    assert np.abs(points).max() <= 1
    centres = points.reshape(3, 20, 2).mean(1)
    nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
    assert nearest.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_service_and_report_draw_the_same_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)  # keep the priority of the test
    np.save(tmp_path / "vectors.npy", three_clusters())
    layout.main(str(tmp_path / "vectors.npy"), str(tmp_path / "points.npy"))
    points, how = project_2d(three_clusters())
    assert np.array_equal(np.load(tmp_path / "points.npy"), points)
    assert (tmp_path / "points.txt").read_text() == how
    assert classifiers.project_2d is layout.project_2d


@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (3, 8), (9, 8), (5, 1), (30, 1)])
def test_few_or_narrow_vectors_are_projected_too(shape: tuple[int, int]) -> None:
    points, how = project_2d(np.eye(*shape, dtype=np.float32) + 1)
    assert points.shape == (shape[0], 2)
    assert np.isfinite(points).all()
    assert how == ("PCA" if shape[0] < TSNE_MIN_VECTORS else "t-SNE")
