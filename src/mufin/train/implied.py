"""Labels that a title says already, in catalogues that leave such labels out of their lists."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from mufin.encode.words import united
from mufin.ragged import ranges
from mufin.train.data import TrainingData

ENOUGH = 10.0  # labels that chance would have listed; of fewer, that none is there says nothing
LEFT_OUT = 0.5  # of what chance would have listed: with fewer there is a rule behind it
PAIRS = 1 << 22  # looked at at a time


def implied(data: TrainingData) -> csr_matrix | None:
    """(N, L) bool: what the title of each point says and its list does not, if such labels are left out.

    An icon named "arrow left" may not list "arrow", since whoever looks for it finds it by its name; but it
    is one, and tells so of icons like it. Titles and labels that have nothing to do with one another would
    meet by chance, Σ frequency / N over all pairs in which the one says the other; only if far fewer of these
    pairs are listed are they left out on purpose. Pairs that must not be seen say nothing either way.
    """
    points, labels = data.points.titles, data.labels.titles
    if points is None or labels is None:
        return None
    said = said_pairs(united(points, data.groups.offsets, data.groups.members), labels)
    pairs = csr_matrix(said > data.exclude)
    frequency = np.bincount(data.relevance.indices, minlength=data.n_labels)
    expected = float(frequency[pairs.indices].sum()) / max(1, len(data.groups))
    listed = data.relevance.multiply(pairs).nnz
    if expected < ENOUGH or listed > LEFT_OUT * expected:
        return None
    return csr_matrix(pairs > data.relevance)


def said_pairs(points: csr_matrix, labels: csr_matrix) -> csr_matrix:
    """(N, L) bool: which points (N, V) have all words of which labels (L, V); a label without words none.

    A label can only be said where its rarest word is, so no other pair is looked at.
    """
    with_word = csr_matrix(points.T)  # (V, N)
    common = np.diff(with_word.indptr)
    words = np.diff(labels.indptr)
    named = np.flatnonzero(words)
    order = np.lexsort((common[labels.indices], np.repeat(np.arange(len(words)), words)))
    rarest = labels.indices[order[labels.indptr[named]]]  # (len(named),)
    found = [np.zeros((2, 0), np.int64)]
    for some in np.array_split(np.arange(len(named)), 1 + int(common[rarest].sum()) // PAIRS):
        word, label = rarest[some], named[some]
        point = with_word.indices[ranges(with_word.indptr[word].astype(np.int64), common[word])]
        label = np.repeat(label, common[word])
        shared = np.asarray(points[point].sign().multiply(labels[label]).sum(axis=1)).ravel()
        all_of_it = shared >= words[label]
        found.append(np.stack([point[all_of_it], label[all_of_it]]))
    rows, columns = np.concatenate(found, axis=1)
    return csr_matrix((np.ones(len(rows), bool), (rows, columns)), (points.shape[0], labels.shape[0]))
