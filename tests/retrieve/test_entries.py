from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from mufin.errors import UsageError
from mufin.retrieve.entries import Entries, centroids

ROWS = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, -4.0]])
OFFSETS = torch.tensor([0, 2, 2, 3])  # label 1 has an empty bag
CENTROIDS = torch.tensor([[0.0, 5.0], [5.0, 0.0], [0.0, 0.0]])
HAS = torch.tensor([True, True, False])


def test_bag_rows_and_centroids_are_unit_vectors_in_label_order() -> None:
    entries = Entries.build(ROWS, OFFSETS, CENTROIDS, HAS, ("bag", "centroid"))
    assert entries.labels.tolist() == [0, 0, 0, 1, 2]
    assert entries.vectors.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0], [0, -1]]
    assert entries.n_labels == 3


def test_the_vector_is_the_normalised_sum_of_the_bag() -> None:
    entries = Entries.build(ROWS, OFFSETS, kinds=("vector",))
    assert entries.labels.tolist() == [0, 2]
    torch.testing.assert_close(entries.vectors, torch.tensor([[2 / 13**0.5, 3 / 13**0.5], [0.0, -1.0]]))


def test_a_label_with_nothing_has_no_entry() -> None:
    entries = Entries.build(ROWS, OFFSETS, kinds=("bag", "centroid"))
    assert entries.labels.tolist() == [0, 0, 2]
    assert len(Entries.build(ROWS[:0], torch.zeros(4).long(), kinds=("bag", "vector"))) == 0


def test_only_keeps_the_rows_of_allowed_labels() -> None:
    entries = Entries.build(ROWS, OFFSETS, kinds=("bag",)).only(torch.tensor([False, True, True]))
    assert entries.labels.tolist() == [2]
    assert entries.n_labels == 3


def test_centroids_against_loops() -> None:
    rng = np.random.default_rng(0)
    vectors = torch.from_numpy(rng.normal(size=(20, 5))).float()
    relevance = rng.random((20, 7)) < 0.2
    relevance[:, 3] = False
    found, has = centroids(vectors, csr_matrix(relevance))
    for label in range(7):
        members = [vectors[i].numpy() for i in range(20) if relevance[i, label]]
        assert bool(has[label]) == bool(members)
        if members:
            mean = np.mean(members, axis=0)
            np.testing.assert_allclose(found[label], mean / np.linalg.norm(mean), atol=1e-6)


def test_a_stored_zero_is_not_relevant_and_opposite_points_have_no_centroid() -> None:
    relevance = csr_matrix((np.array([1, 1, 0]), ([0, 1, 0], [0, 0, 1])), shape=(2, 2))
    _, has = centroids(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), relevance)
    assert has.tolist() == [False, False]


def test_wrong_use_is_told() -> None:
    with pytest.raises(UsageError, match="ascending"):
        Entries(torch.eye(2), torch.tensor([1, 0]), 2)
    with pytest.raises(UsageError, match="there are 1 labels"):
        Entries(torch.eye(2), torch.tensor([0, 1]), 1)
    with pytest.raises(UsageError, match="vectors"):
        Entries(torch.eye(2), torch.tensor([0]), 1)
    with pytest.raises(UsageError, match="kinds"):
        Entries.build(ROWS, OFFSETS, kinds=("bags",))
    with pytest.raises(UsageError, match="one row per datapoint"):
        centroids(torch.eye(2), csr_matrix((3, 2)))
