"""Rank many requests together, with the same answers as one by one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.sparse import csr_matrix

from mufin.data.item import Item
from mufin.data.items import Items
from mufin.data.pictures import DecodedPictures
from mufin.encode.features import Groups
from mufin.errors import UsageError
from mufin.model.hits import Ranked
from mufin.serve.catalogue_view import CatalogueView
from mufin.serve.live import Live, State
from mufin.serve.metrics import Metrics
from mufin.serve.problem import Problem
from mufin.signals.base import Query as ModelQuery


@dataclass(frozen=True)
class Query:
    """An item with its images decoded to the size that the model reads."""

    id: str = ""
    texts: tuple[str, ...] = ()
    images: tuple[Image.Image, ...] = ()


def table_of(queries: Sequence[Query]) -> Items:
    """Return the queries as items."""
    plain = Items.of([Item(query.id, query.texts) for query in queries])
    return Items(plain.table, DecodedPictures([query.images for query in queries]))


@torch.no_grad()
def vectors_of(state: State, queries: Sequence[Query], first: int = 0) -> np.ndarray:
    """Return x̂¹ of each query, (B, D); `first` is the number of the first one within its call."""
    features = state.model.features(table_of(queries))
    for n in np.flatnonzero(features.sizes == 0):
        raise _nothing(first + int(n), state)
    bags = state.model.embedder.embed(features, Groups.singles(np.arange(len(queries))))
    found: np.ndarray = bags.vectors().cpu().numpy()
    return found


@dataclass(frozen=True)
class Ask:
    """A call of /v1/recommend, or a slice of a long one."""

    queries: tuple[Query, ...]
    k: int = 10
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    least: float = 0.0  # minimum probability of a hit
    first: int = 0  # number of the first query within the whole call
    state: State | None = None  # the model that answers all slices of a call; None: the current one


@dataclass(frozen=True)
class Answer:
    """The hits of each query, as in the response, and the version of the model."""

    hits: list[list[dict[str, Any]]]
    version: str


class Answerer:
    """Answer batches in the thread of the model."""

    def __init__(self, live: Live, view: CatalogueView | None, metrics: Metrics) -> None:
        self.live, self.view, self.metrics = live, view, metrics

    @torch.inference_mode()
    def __call__(self, asks: Sequence[Ask]) -> list[Answer | Exception]:
        """Return the answer to each request, or its error."""
        state = asks[0].state or self.live.state  # a slice of a long call is a batch of its own
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
        """Return all queries, ready to be ranked, and those without anything that the model reads."""
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
        """Return labels not to be shown, (B, L): the item itself, and the filter pairs of the catalogue."""
        if not any(query.id for query in queries):
            return None
        own = state.model.own_labels(table_of([Query(query.id) for query in queries]))
        ids = [query.id for query in queries]
        pairs = None if self.view is None else self.view.hidden(ids, state.labels)
        return own if pairs is None else pairs if own is None else csr_matrix(own + pairs)

    def _answer(self, state: State, ask: Ask, hits: list[list[dict[str, Any]]]) -> Answer:
        shown = [[hit for hit in some[: ask.k] if hit["probability"] >= ask.least] for some in hits]
        for query, some in zip(ask.queries, shown, strict=True):
            self._mark(query, some)
        return Answer(shown, state.version)

    def _mark(self, query: Query, hits: list[dict[str, Any]]) -> None:
        row = self.view.row(query.id) if self.view is not None and query.id else None
        labels = None if self.view is None or row is None else self.view.known_labels(row)
        known = None if labels is None else set(labels)
        for hit in hits:
            hit["relevant"] = None if known is None else hit["label"] in known


def _groups(asks: Sequence[Ask], state: State) -> dict[Any, list[int]]:
    """Group requests that one call of `rank` can serve: equal filters, and k of the same shortlist."""
    usual = state.model.config.retrieve.shortlist
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, ask in enumerate(asks):
        groups[ask.allow, ask.deny, max(ask.k, usual)].append(i)
    return groups


def _hits(state: State, ranked: Ranked) -> list[list[dict[str, Any]]]:
    counts = state.images
    return [
        [
            {**hit.as_dict(), "images": int(counts[row])}
            for hit, row in zip(hits, rows, strict=False)  # rows of −1 pad the end
        ]
        for hits, rows in zip(state.model.hits(ranked), ranked.labels.tolist(), strict=True)
    ]


def _nothing(number: int, state: State) -> Problem:
    reads = state.model.config.modalities
    return Problem(422, f"items.{number} has nothing that this model reads ({reads})")
