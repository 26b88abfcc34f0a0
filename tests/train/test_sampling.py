"""Which positives and negatives a batch sees: against dense matrices, and by counting what is drawn."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix

from mufin.data.relation import Relation
from mufin.retrieve.shortlist import Shortlist
from mufin.train.loop import seeded
from mufin.train.sampling import ShortlistNegatives, hard_pairs, shared_labels


def test_hard_pairs() -> None:
    rng = np.random.default_rng(0)
    dense = rng.random((9, 14)) < 0.4
    z, x = (torch.from_numpy(rng.standard_normal((n, 5))) for n in (9, 14))
    hard = hard_pairs(Relation.of(csr_matrix(dense)), z, x, 0.3)
    found = hard.membership(torch.arange(9), torch.arange(14)).numpy()
    assert np.array_equal(found, dense & ((z @ x.T).numpy() <= 0.3))
    assert len(hard_pairs(Relation.of(csr_matrix((9, 14), dtype=bool)), z, x, 0.3).columns) == 0


def test_shortlist_negatives() -> None:
    """Never a positive, an excluded label or a gap; every other label of R_i equally often."""
    rng, generator = np.random.default_rng(1), seeded(1)
    n, n_labels, k = 6, 20, 9
    labels = np.stack([rng.choice(n_labels, k, replace=False) for _ in range(n)])
    labels[0, 5:] = -1
    labels[1] = -1
    relevance, exclude = (rng.random((n, n_labels)) < 0.2 for _ in range(2))
    relevance[:, n_labels - 1] = True  # its key is next to that of a gap in the next row
    shortlist = Shortlist(torch.tensor(labels), torch.zeros(n, k))
    related = (Relation.of(csr_matrix(each)) for each in (relevance, exclude))
    negatives = ShortlistNegatives(shortlist, *related)
    assert np.array_equal(shortlist.labels.numpy(), labels)  # it is not ours to change
    points, counts = torch.tensor([4, 0, 1, 2, 3, 5, 0]), np.zeros((n, n_labels))
    for _ in range(600):
        drawn = negatives.draw(points, 3, generator).numpy()
        for point, row in zip(points.tolist(), drawn, strict=True):
            there = row[row >= 0]
            allowed = [
                l for l in labels[point] if l >= 0 and not relevance[point, l] and not exclude[point, l]
            ]
            assert set(there) <= set(allowed)
            assert len(set(there)) == len(there) == min(3, len(allowed))
            counts[point, there] += 1
    for row in counts:
        seen = row[row > 0]
        if len(seen) > 3:
            assert seen.min() > 0.75 * seen.mean()
            assert seen.max() < 1.3 * seen.mean()
    assert negatives.draw(points, 50, generator).shape[1] <= 50
    assert negatives.draw(points, 0, generator).shape == (7, 0)


def test_shared_labels() -> None:
    generator = seeded(2)
    wanted = torch.tensor([7, -1, 3, 7, 99])
    assert shared_labels(100, wanted, 0, generator).tolist() == [3, 7, 99]
    counts = np.zeros(100)
    for _ in range(300):
        labels = shared_labels(100, wanted, 20, generator).tolist()
        assert labels == sorted(set(labels))
        assert {3, 7, 99} <= set(labels)
        assert len(labels) <= 23
        assert min(labels) >= 0
        counts[labels] += 1
    assert counts.min() > 20
    assert shared_labels(100, wanted, 100, generator).tolist() == list(range(100))
    assert shared_labels(1, torch.tensor([0]), 5, generator).tolist() == [0]
