"""P@1 on held-out training points while training goes on, and the mixture of scores learnt on them."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from mufin.data.ragged import Ints
from mufin.data.relation import Relation
from mufin.encode.embedder import Embedder
from mufin.model.mufin import Mufin
from mufin.signals.base import marked
from mufin.signals.mixture import Mixture
from mufin.train.data import TrainingData
from mufin.train.transfer import Networks

MOST = 1000  # points held out
CELLS = 1 << 25  # (point, label) scores at a time
RERANKED = 100  # labels a point, where the ranker adapts


def hold_out(data: TrainingData, share: float, rng: np.random.Generator) -> Ints:
    """A random share of the points that have labels, at most 1,000, to be kept away from training.

    Points of one set stay together: what one leaves out, the others show. So do points of the same
    texts: without one another, they are what new points will be like. Groups too large for it stay in.
    """
    usable = data.used_points
    wanted = min(MOST, int(share * len(usable)))
    if not wanted:
        return np.zeros(0, np.int64)
    group = _alike(data.take(usable))
    sizes = np.bincount(group)
    turn = rng.random(len(sizes)) + (sizes > max(1, wanted // 4))  # groups in random order, large ones last
    order = np.argsort(turn, kind="stable")
    taken = np.zeros(len(sizes), bool)
    taken[order[np.cumsum(sizes[order]) <= wanted]] = True  # as many whole groups as fit
    return np.sort(usable[taken[group]]).astype(np.int64)


@torch.no_grad()
def precision_at_1(embedder: Embedder, held: TrainingData, networks: Networks | None = None) -> float:
    """How often the best label, by ⟨x̂, ẑ⟩ in Module I and by classifier in Module IV, is relevant, in %."""
    with embedder.fast_eval():
        bags = embedder.embed(held.labels, held.label_groups)
        points = embedder.embed(held.points, held.groups)
    z = bags.vectors()  # (L, D)
    w = z if networks is None else networks.weights(z)
    relevance, exclude = (Relation.of(each, z.device) for each in (held.relevance, held.exclude))
    everything, hits = torch.arange(len(z), device=z.device), 0
    for rows in torch.arange(len(points), device=z.device).split(max(1, CELLS // len(z))):
        x = points.take(rows)
        hidden = exclude.membership(rows, everything)
        score = (x.vector() @ w.T).masked_fill(hidden, -torch.inf)  # (B, L)
        top, best = score.topk(min(RERANKED, len(z)), dim=1)
        if networks is not None and networks.ranker.adapts:
            training = networks.ranker.training
            again = networks.ranker.eval()(x, bags.take(best), w[best]).masked_fill(top.isinf(), -torch.inf)
            best = best.gather(1, again.argmax(1, keepdim=True))
            networks.ranker.train(training)
        hits += int(relevance.holds(rows, best[:, :1]).sum())
    return 100 * hits / len(points)


def learn_mixture(model: Mufin, held: TrainingData) -> Mixture:
    """The mixture of scores, if it is to be learnt, and its reading as a probability, on unseen points."""
    labels, evidence = model.candidates(model.query(held.points, held.groups), held.exclude)
    relevant = marked(labels, held.relevance)
    mixture = model.mixture
    if model.config.rank.beta == "learnt":
        mixture = mixture.learnt(evidence, relevant)
    return mixture.calibrated(evidence, relevant)


def _alike(data: TrainingData) -> Ints:
    """A number per point, the same for points of one set and for points of the same texts."""
    texts, of_point = data.points.text.select(data.groups)
    starts = np.searchsorted(of_point, np.arange(len(data.groups) + 1))
    words = [np.sort(texts[start:end]).tobytes() for start, end in pairwise(starts)]
    links = [(i, ("texts", key)) for i, key in enumerate(words) if key]
    # The points of a set have the same items in all, relevant or excluded, but exclude different ones.
    both, excluded = _rows(data.relevance + data.exclude), _rows(data.exclude)
    rests: dict[bytes, set[bytes]] = defaultdict(set)
    for key, rest in zip(both, excluded, strict=True):
        rests[key].add(rest)
    links += [(i, ("set", key)) for i, key in enumerate(both) if excluded[i] and len(rests[key]) > 1]
    return _joined(len(data.groups), links)


def _rows(matrix: csr_matrix) -> list[bytes]:
    """The columns of each row, to be compared."""
    matrix = csr_matrix(matrix)
    matrix.sort_indices()
    return [matrix.indices[start:end].tobytes() for start, end in pairwise(matrix.indptr)]


def _joined(n: int, links: list[tuple[int, tuple[str, bytes]]]) -> Ints:
    """A number for each of n points, the same where a key joins them, directly or through others."""
    number = {key: n + i for i, key in enumerate(dict.fromkeys(key for _, key in links))}
    edges = [point for point, _ in links], [number[key] for _, key in links]
    size = n + len(number)
    graph = csr_matrix((np.ones(len(links), bool), edges), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1][:n], np.int64)
