"""Hold out training points, to measure P@1 during training and to learn the mixture."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from mufin.data.catalogue import Catalogue
from mufin.data.ragged import Ints
from mufin.data.relation import Relation
from mufin.encode.embedder import Embedder
from mufin.model.mufin import Mufin
from mufin.signals.base import marked
from mufin.signals.mixture import Mixture
from mufin.train.data import TrainingData
from mufin.train.transfer import Networks
from mufin.train.unseen import clues_of_parts, clues_of_strange_queries

MAX_HELD_OUT = 1000  # points
SCORES_PER_CHUNK = 1 << 25  # (point, label) pairs
RERANKED = 100  # labels per point, if the ranker adapts


def hold_out(data: TrainingData, share: float, rng: np.random.Generator) -> Ints:
    """Select a random share of the points with labels, at most 1,000, to hold out from training.

    Points of one set stay together, because each reveals the item that another leaves out. Points with the
    same texts stay together too, because new points have no such twin. Groups that are too large are kept
    for training.
    """
    usable = data.used_points
    wanted = min(MAX_HELD_OUT, int(share * len(usable)))
    if not wanted:
        return np.zeros(0, np.int64)
    group = _group_numbers(data.take(usable))
    sizes = np.bincount(group)
    priority = rng.random(len(sizes)) + (sizes > max(1, wanted // 4))  # random, large groups last
    order = np.argsort(priority, kind="stable")
    taken = np.zeros(len(sizes), bool)
    taken[order[np.cumsum(sizes[order]) <= wanted]] = True  # as many whole groups as fit
    return np.sort(usable[taken[group]]).astype(np.int64)


@torch.no_grad()
def precision_at_1(embedder: Embedder, held: TrainingData, networks: Networks | None = None) -> float:
    """Return P@1 in %, ranking by ⟨x̂, ẑ⟩ in Module I and by classifier in Module IV."""
    with embedder.fast_eval():
        bags, points = held.embed_labels(embedder), held.embed_points(embedder)
    z = bags.vectors()  # (L, D)
    w = z if networks is None else networks.weights(z)
    relevance, exclude = (Relation.of(each, z.device) for each in (held.relevance, held.exclude))
    everything, hits = torch.arange(len(z), device=z.device), torch.zeros((), device=z.device)
    mine = held.ranks.owns(held.point_owner.to(z.device))
    for rows in mine.split(max(1, SCORES_PER_CHUNK // len(z))):
        x = points.take(rows)
        hidden = exclude.membership(rows, everything)
        score = (x.vector() @ w.T).masked_fill(hidden, -torch.inf)  # (B, L)
        top, best = score.topk(min(RERANKED, len(z)), dim=1)
        if networks is not None and networks.ranker.adapts:
            training = networks.ranker.training
            reranked = networks.ranker.eval()(x, bags.take(best), w[best])
            reranked = reranked.masked_fill(top.isinf(), -torch.inf)
            best = best.gather(1, reranked.argmax(1, keepdim=True))
            networks.ranker.train(training)
        hits += relevance.holds(rows, best[:, :1]).sum()
    return 100 * float(held.ranks.sum(hits)) / len(points)


def learn_mixture(model: Mufin, held: TrainingData, catalogue: Catalogue) -> Mixture:
    """Learn the mixture on held-out points, unless β is fixed, and calibrate its probability.

    The calibration also sees points in part, and strange queries that no label answers.
    """
    labels, evidence = model.candidates(model.query(held.points, held.groups), held.exclude)
    relevant = marked(labels, held.relevance)
    mixture = model.mixture
    if model.config.rank.beta == "learnt":
        mixture = mixture.learnt(evidence, relevant)
    strange = clues_of_strange_queries(model, catalogue, model.config.seed)
    return mixture.calibrated(evidence, relevant, clues_of_parts(model, catalogue, held), strange)


def _group_numbers(data: TrainingData) -> Ints:
    """Return a group number per point; points of one set or with the same texts share it."""
    texts, of_point = data.points.text.select(data.groups)
    starts = np.searchsorted(of_point, np.arange(len(data.groups) + 1))
    words = [np.sort(texts[start:end]).tobytes() for start, end in pairwise(starts)]
    links = [(i, ("texts", key)) for i, key in enumerate(words) if key]
    # Points of a set agree on the union of relevant and excluded items, but exclude different ones.
    both, excluded = _row_keys(data.relevance + data.exclude), _row_keys(data.exclude)
    rests: dict[bytes, set[bytes]] = defaultdict(set)
    for key, rest in zip(both, excluded, strict=True):
        rests[key].add(rest)
    links += [(i, ("set", key)) for i, key in enumerate(both) if excluded[i] and len(rests[key]) > 1]
    return _connected_groups(len(data.groups), links)


def _row_keys(matrix: csr_matrix) -> list[bytes]:
    """Return the columns of each row as bytes, for comparison."""
    matrix = csr_matrix(matrix)
    matrix.sort_indices()
    return [matrix.indices[start:end].tobytes() for start, end in pairwise(matrix.indptr)]


def _connected_groups(n: int, links: list[tuple[int, tuple[str, bytes]]]) -> Ints:
    """Return a group number per point; points linked by a common key, even indirectly, share it."""
    number = {key: n + i for i, key in enumerate(dict.fromkeys(key for _, key in links))}
    edges = [point for point, _ in links], [number[key] for _, key in links]
    size = n + len(number)
    graph = csr_matrix((np.ones(len(links), bool), edges), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1][:n], np.int64)
