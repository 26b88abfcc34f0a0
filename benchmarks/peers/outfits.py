"""Peers for fill in the blank: functions (catalogue) → (questions → chosen answers).

They learn from the sets of the catalogue; settings are chosen on questions made from held-out sets.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_matrix

from mufin import Catalogue
from mufin.data.split import Questions, Split, read_sets, sparse
from mufin.evaluate.baselines import tfidf
from mufin.evaluate.metrics import fitb_accuracy
from peers.common import texts_of

Answers = Callable[[Questions], np.ndarray]
MAX_ATTRIBUTES = 4000
HELD_OUT_FRACTION = 0.15
CHOICES_PER_QUESTION = 4


def attribute_pairs(catalogue: Catalogue) -> Answers:
    """Score choices by how often their attributes co-occur with those of the query, relative to chance.

    score(q, c) = mean over pairs of attributes (u of q, v of c) of log((n_uv + s) / (e_uv + s)), with the
    observed counts n and the counts e expected for random sets. Attributes are whole texts, words, or both.
    """
    sets = read_sets(catalogue.parts[catalogue.sets[0]], catalogue.items)
    rng = np.random.default_rng(0)
    held_out = rng.random(len(sets)) < HELD_OUT_FRACTION
    known = [group for group, out in zip(sets, held_out, strict=True) if not out]
    practice = _questions([group for group, out in zip(sets, held_out, strict=True) if out], catalogue, rng)
    options = [(_attributes(catalogue, kind), smooth) for kind in ("texts", "words", "both")
               for smooth in (1.0, 5.0, 20.0)]  # fmt: skip
    best = options[-2]
    if len(practice):  # a few sets may yield no question
        best = max(
            options, key=lambda o: fitb_accuracy(_choose(_by_pairs(*o, known))(practice), practice.answer)
        )
    return _choose(_by_pairs(*best, sets))


def text_similarity(catalogue: Catalogue) -> Answers:
    """Choose by TF-IDF similarity to the texts of the query."""
    texts = texts_of(catalogue, _singles(catalogue))
    vectors = tfidf(texts, texts[:1])[0]
    return _choose(
        lambda query, choices: np.asarray((vectors[choices] @ vectors[query].T).mean(axis=1)).ravel()
    )


def encoder_similarity(catalogue: Catalogue) -> Answers:
    """Choose by similarity of the late-fusion vectors of the frozen encoders."""
    from peers.late import vectors

    found = vectors(catalogue, _singles(catalogue), text=0.5)[0]
    return _choose(lambda query, choices: (found[choices] @ found[query].T).mean(axis=1))


ANSWERS: dict[str, Callable[[Catalogue], Answers]] = {
    "TF-IDF similarity": text_similarity,
    "late fusion, similarity": encoder_similarity,
    "attribute pairs": attribute_pairs,
}


def _choose(score: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Answers:
    """Choose by the highest score(query rows, choice rows) → (choices,)."""

    def reply(asked: Questions) -> np.ndarray:
        pairs = zip(asked.query, asked.choices, strict=True)
        return np.array([int(np.argmax(score(query, choices))) for query, choices in pairs])

    return reply


def _by_pairs(
    attributes: csr_matrix, smooth: float, sets: list[np.ndarray]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    n = attributes.shape[0]
    ends = np.cumsum([0, *map(len, sets)])
    membership = csr_matrix((np.ones(ends[-1], np.float32), np.concatenate(sets), ends), shape=(len(sets), n))
    in_set = membership @ attributes  # (sets, V)
    alone = attributes.multiply(np.asarray(membership.sum(axis=0)).reshape(-1, 1)).tocsr()
    met = (in_set.T @ in_set - attributes.T @ alone).toarray()  # (V, V), without pairs of an item with itself
    share = met.sum(axis=1) / met.sum()
    chance = np.outer(share, share) * met.sum()
    surprise = np.log((met + smooth) / (chance + smooth))
    towards = np.asarray(attributes @ surprise)  # (N, V)
    size = np.maximum(np.asarray(attributes.sum(axis=1)).ravel(), 1)

    def score(query: np.ndarray, choices: np.ndarray) -> np.ndarray:
        mean = (towards[query] / size[query, None]).mean(axis=0)
        return np.asarray(attributes[choices] @ mean) / size[choices]

    return score


def _attributes(catalogue: Catalogue, kind: str) -> csr_matrix:
    """The frequent attributes of each item, (N, V)."""
    rows = []
    for texts in catalogue.items.texts.to_pylist():
        whole = {text.lower() for text in texts or ()}
        words = {word for text in whole for word in text.split() if any(map(str.isalnum, word))}
        rows.append(sorted({"texts": whole, "words": words, "both": whole | words}[kind]))
    names, column, count = np.unique(np.concatenate(rows), return_inverse=True, return_counts=True)
    whole = csr_matrix(sparse(np.cumsum([0, *map(len, rows)]), column, len(names)), dtype=np.float32)
    return csr_matrix(whole[:, np.argsort(-count, kind="stable")[:MAX_ATTRIBUTES]])


def _questions(sets: list[np.ndarray], catalogue: Catalogue, rng: np.random.Generator) -> Questions:
    """One question per set: an item is missing, and the wrong choices have its category."""
    table = catalogue.items.table
    kinds = np.array(
        table.column("category").to_pylist() if "category" in table.column_names else [""] * len(table)
    )
    pool = np.unique(np.concatenate([np.zeros(0, np.int64), *sets]))
    query, choices = [], []
    for group in sets:
        blank = int(rng.integers(len(group)))
        like = pool[(kinds[pool] == kinds[group[blank]]) & ~np.isin(pool, group)]
        if len(like) >= CHOICES_PER_QUESTION - 1:
            query.append(np.delete(group, blank))
            choices.append([group[blank], *rng.choice(like, CHOICES_PER_QUESTION - 1, replace=False)])
    return Questions(query, np.array(choices, np.int64), np.zeros(len(query), np.int64))


def _singles(catalogue: Catalogue) -> Split:
    """A split with one point per item."""
    n = len(catalogue.items)
    empty = csr_matrix((n, len(catalogue.labels)), dtype=bool)
    return Split(np.arange(n + 1), np.arange(n), empty, empty)
