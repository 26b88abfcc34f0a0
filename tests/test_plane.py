"""Vectors as points of a plane: what lies together stays together, and the points are always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mufin import plane as module
from mufin.evaluate.report import maps
from mufin.plane import Points, plane
from mufin.serve import layout


def three_groups() -> Points:
    random = np.random.default_rng(0)
    groups = random.normal(size=(3, 1, 16)) + 0.1 * random.normal(size=(3, 20, 16))
    vectors = groups.reshape(60, 16).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_groups_of_vectors_are_groups_of_points() -> None:
    shares: list[float] = []
    points, how = plane(three_groups(), shares.append)
    assert how == "t-SNE"
    assert shares
    assert shares == sorted(shares)
    assert np.abs(points).max() <= 1
    centres = points.reshape(3, 20, 2).mean(1)
    nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
    assert nearest.tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_service_and_report_have_the_same_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)  # the test runs on at its own priority
    np.save(tmp_path / "vectors.npy", three_groups())
    layout.main(str(tmp_path / "vectors.npy"), str(tmp_path / "points.npy"))
    points, how = plane(three_groups())
    assert np.array_equal(np.load(tmp_path / "points.npy"), points)
    assert (tmp_path / "points.txt").read_text() == how
    assert maps.plane is layout.plane


@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (3, 8), (9, 8), (5, 1), (30, 1)])
def test_few_or_narrow_vectors_have_a_plane_too(shape: tuple[int, int]) -> None:
    points, how = plane(np.eye(*shape, dtype=np.float32) + 1)
    assert points.shape == (shape[0], 2)
    assert np.isfinite(points).all()
    assert how == ("PCA" if shape[0] < module.FEW else "t-SNE")
