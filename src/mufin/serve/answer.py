"""Answer: many requests ranked together, each as if it had come alone."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from mufin.errors import UsageError
from mufin.hits import Ranked
from mufin.serve.live import Live, State
from mufin.serve.metrics import Metrics
from mufin.serve.problem import Problem
from mufin.serve.query import Query, table_of
from mufin.serve.shelf import Shelf
from mufin.signals.base import Query as ModelQuery


@dataclass(frozen=True)
class Ask:
    """A call of /v1/recommend."""

    queries: tuple[Query, ...]
    k: int = 10
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    least: float = 0.0  # probability that a hit must have
    first: int = 0  # the number of the first query in the call that this is a slice of
    state: State | None = None  # the model that answers all slices of a long call; None: today's


@dataclass(frozen=True)
class Answer:
    """Hits of each query, as the response has them, by the model of this version."""

    hits: list[list[dict[str, Any]]]
    version: str


class Answerer:
    """Runs in the thread of the model."""

    def __init__(self, live: Live, shelf: Shelf | None, metrics: Metrics) -> None:
        self.live, self.shelf, self.metrics = live, shelf, metrics

    @torch.inference_mode()
    def __call__(self, asks: Sequence[Ask]) -> list[Answer | Exception]:
        """The answer to each of these, or what is wrong with it."""
        state = asks[0].state or self.live.state  # a slice of a long call comes alone
        every, empty = self._read(state, [query for ask in asks for query in ask.queries])
        starts = np.cumsum([0, *(len(ask.queries) for ask in asks)])
        answers: list[Answer | Exception] = [Problem(500, "not answered")] * len(asks)
        for together in _groups(asks, state).values():
            started = time.perf_counter()
            rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in together])
            try:
                ranked = self._ranked(state, every, rows, [asks[i] for i in together])
            except UsageError as error:
                answers = [error if i in together else answer for i, answer in enumerate(answers)]
                continue
            hits, first = _hits(state, ranked), 0
            for i in together:
                last = first + len(asks[i].queries)
                answers[i] = self._answer(state, asks[i], hits[first:last])
                if bad := [n for n in range(len(asks[i].queries)) if starts[i] + n in empty]:
                    answers[i] = _nothing(asks[i].first + bad[0], state)
                first = last
            self.metrics.stage("rank", time.perf_counter() - started)
        return answers

    def _read(self, state: State, queries: list[Query]) -> tuple[ModelQuery, set[int]]:
        """All queries, ready to be ranked, and those that have nothing the model looks at."""
        with self.metrics.timed("encode"):
            features = state.model.features(table_of(queries))
            query = state.model.query(features)
        return query, set(np.flatnonzero(features.sizes == 0).tolist())

    def _ranked(self, state: State, every: ModelQuery, rows: np.ndarray, asks: list[Ask]) -> Ranked:
        queries = [query for ask in asks for query in ask.queries]
        chosen = every if len(rows) == len(every) else every.take(rows)
        k = max(ask.k for ask in asks)
        allowed = state.labels.allowed(asks[0].allow, asks[0].deny)  # the same for all of them
        return state.model.rank(chosen, k, self._hidden(state, queries), allowed)

    def _hidden(self, state: State, queries: list[Query]) -> csr_matrix | None:
        """(B, L): the label an item is itself, and the filter pairs of the catalogue."""
        if not any(query.id for query in queries):
            return None
        own = state.model.own_labels(table_of([Query(query.id) for query in queries]))
        ids = [query.id for query in queries]
        pairs = None if self.shelf is None else self.shelf.hidden(ids, state.labels)
        return own if pairs is None else pairs if own is None else csr_matrix(own + pairs)

    def _answer(self, state: State, ask: Ask, hits: list[list[dict[str, Any]]]) -> Answer:
        shown = [[hit for hit in some[: ask.k] if hit["probability"] >= ask.least] for some in hits]
        for query, some in zip(ask.queries, shown, strict=True):
            self._mark(query, some)
        return Answer(shown, state.version)

    def _mark(self, query: Query, hits: list[dict[str, Any]]) -> None:
        row = self.shelf.row(query.id) if self.shelf is not None and query.id else None
        truth = None if self.shelf is None or row is None else self.shelf.truth(row)
        known = None if truth is None else set(truth)
        for hit in hits:
            hit["relevant"] = None if known is None else hit["label"] in known


def _groups(asks: Sequence[Ask], state: State) -> dict[Any, list[int]]:
    """Asks that one call of `rank` can serve: the same filters, and k that leave the shortlist as it is."""
    usual = state.model.config.retrieve.shortlist
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, ask in enumerate(asks):
        groups[ask.allow, ask.deny, max(ask.k, usual)].append(i)
    return groups


def _hits(state: State, ranked: Ranked) -> list[list[dict[str, Any]]]:
    counts = state.pictures
    return [
        [
            {**vars(hit), "images": int(counts[row])}
            for hit, row in zip(hits, rows, strict=False)  # rows of −1 follow the last hit
        ]
        for hits, rows in zip(state.model.hits(ranked), ranked.labels.tolist(), strict=True)
    ]


def _nothing(number: int, state: State) -> Problem:
    reads = state.model.config.modalities
    return Problem(422, f"items.{number} has nothing to look at (this model reads: {reads})")
