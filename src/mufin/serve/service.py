"""Service: the parts of a running server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mufin.data.catalogue import Catalogue
from mufin.data.images import scaled
from mufin.data.pictures import Encoded, Pictures
from mufin.errors import ModelError, PictureError
from mufin.model.mufin import Mufin
from mufin.serve.answer import Answer, Answerer, Ask, Query, vectors_of
from mufin.serve.batching import Batcher
from mufin.serve.catalogue_view import CatalogueView, Examples
from mufin.serve.images import check_count, check_pixels, decoded, from_base64
from mufin.serve.live import Live, State
from mufin.serve.map import Map
from mufin.serve.metrics import Metrics
from mufin.serve.middleware import Bodies
from mufin.serve.problem import Problem
from mufin.serve.schemas import (
    LIMITS,
    ExampleBody,
    LabelBody,
    QueryBody,
    Settings,
    check_cost,
    cost_of,
    slices,
)

WATCH_SECONDS = 0.5  # replicas follow each other within a second
FIRST_SECONDS = 300.0  # for the first query, on a machine that may be busy; others have the deadline
SMALL = 96  # pixels, for a model that reads no images: only to check that they can be decoded


def stay_on_one_core() -> None:
    """Make torch and faiss use one core in this thread: waking all of them makes a query slower."""
    import faiss
    import torch

    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def _shareable(model: Mufin) -> bool:
    """Return whether several threads may encode at once: partly frozen networks are rewired in each pass."""
    encoders = (model.embedder.text, model.embedder.vision)
    return all(encoder is None or encoder.depth in (0, "all") for encoder in encoders)


class Service:
    """A model, the catalogue beside it, and the threads that do the work."""

    def __init__(
        self,
        folder: Path,
        read: Callable[[Path], Mufin],
        catalogue: Catalogue | None = None,
        settings: Settings | None = None,
    ) -> None:
        """Serve the model that `read` loads from a folder, or from what a link points to."""
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self.bodies = Bodies()
        self._read = read
        model = read(folder)
        self.live = Live(model, folder, self._another)
        self.catalogue = None if catalogue is None else CatalogueView(catalogue)
        self.name = folder.resolve().name
        self.batcher: Batcher[Ask] = Batcher(
            Answerer(self.live, self.catalogue, self.metrics),
            window=self.settings.window,
            size=self.settings.batch,
            queue=self.settings.queue,
            backlog=LIMITS.cost,
            deadline=self.settings.deadline,
            metrics=self.metrics,
            threads=self.settings.threads if _shareable(model) else 1,
            prepare=stay_on_one_core,
        )
        self.metrics.gauge(
            "mufin_queue_items", "Cost of the items that wait for the model", lambda: self.batcher.depth
        )
        self.metrics.gauge("mufin_labels", "Living labels", lambda: len(self.live.state.labels))
        self._pool = ThreadPoolExecutor(2, "mufin-decode")
        self.map = Map(self.live)
        self.examples = self._examples()
        self._tasks: set[asyncio.Task[None]] = set()

    def _examples(self) -> Examples | None:
        if self.catalogue is None or "train" not in self.catalogue.splits:
            return None
        return Examples(self.live.state.model, self.catalogue, self.batcher)

    def _another(self, folder: Path) -> Mufin:
        """Load a model to replace the one served, and answer a first query, which is slow."""
        model = self._read(folder)
        if self.settings.threads > 1 and not _shareable(model):
            raise ModelError(f"the model in {folder} computes in one thread only; restart without --threads")
        model.recommend("a first query")
        return model

    async def reload(self) -> State:
        """Serve what the model folder holds now."""
        network = self.live.network
        state = await self.live.reload()
        if self.live.network != network:
            self.examples = self._examples()
            await self.map.forget()
            gc.unfreeze()  # or the old model would never be freed
            await asyncio.to_thread(gc.collect)
            gc.freeze()
        return state

    def reload_soon(self) -> None:
        """Reload in the background, and log why if it fails."""
        self._begin(self._reload_or_log())

    def _begin(self, job: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload_or_log(self) -> None:
        with suppress(Problem):  # logged where it arose
            await self.reload()

    async def _watch(self) -> None:
        """Reload whenever the folder, or the link to it, has changed."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            with suppress(ModelError, OSError):  # being replaced now
                if await asyncio.to_thread(self.live.outdated):
                    await self._reload_or_log()

    async def start(self) -> None:
        """Start the threads and answer a first query, which is slow."""
        self.batcher.start()
        white = Image.new("RGB", (self.image_size, self.image_size), "white")
        await self.batcher.ask(Ask((Query("", ("a first query",), (white,)),)), 1, FIRST_SECONDS)
        if self.settings.watch:
            self._begin(self._watch())

    async def stop(self) -> None:
        """Answer what is waiting, then end the threads."""
        for task in self._tasks:
            task.cancel()
        await self.map.close()
        await self.batcher.close()
        self._pool.shutdown()

    def facts(self) -> dict[str, Any]:
        """Return what is served, and its limits."""
        state, config = self.live.state, self.live.state.model.config
        reads = {"both": "text+image", "text": "text", "image": "image"}[config.modalities]
        return {
            "name": self.name,
            "model": state.version,
            "labels": len(state.labels.alive),
            "living": len(state.labels),
            "memory": len(state.model.points),
            "modalities": reads,
            "own_items": state.labels.own_items,
            "adapts": state.model.ranker.adapts,
            "signals": state.model.part_descriptions,
            "categories": "category" in state.labels.items.table.column_names,
            "catalogue": self.catalogue is not None,
            "splits": [] if self.catalogue is None else self.catalogue.splits,
            "writable": self.settings.writable,
            "needs_token": self.settings.token is not None,
            "k_max": LIMITS.k,
            "limits": asdict(LIMITS),
        }

    def descriptors(self, query: Query) -> list[dict[str, Any]]:
        """Return what the model reads of a query, in the order of the bag: texts, then images."""
        reads = self.live.state.model.config.modalities
        texts = [text for text in query.texts if text.strip()] if reads != "image" else []
        images = query.images if reads != "text" else ()
        return [
            *({"kind": "text", "text": text} for text in texts),
            *({"kind": "image", "n": n} for n in range(len(images))),
        ]

    @property
    def image_size(self) -> int:
        vision = self.live.state.model.embedder.vision
        return SMALL if vision is None else vision.size

    def costs(self, items: Sequence[Query | QueryBody | LabelBody | ExampleBody], k: int = 0) -> list[int]:
        """Return the cost of each item for this model."""
        tokens = self.live.state.model.embedder.text.max_length
        return [cost_of(item.texts, len(item.images), tokens, k) for item in items]

    async def recommend(self, ask: Ask) -> Answer:
        """Answer a call; a long one is computed in slices by the same model."""
        costs = self.costs(ask.queries, ask.k)
        check_cost(costs, "items.{}")
        if sum(costs) <= self.batcher.size:
            answer: Answer = await self.batcher.ask(ask, sum(costs))
            return answer
        state = self.live.state
        parts = [
            (replace(ask, queries=ask.queries[some], state=state, first=some.start), sum(costs[some]))
            for some in slices(costs)
        ]
        answers: list[Answer] = await self.batcher.ask_slices(parts)
        return Answer([hits for answer in answers for hits in answer.hits], state.version)

    async def embed(self, queries: Sequence[Query]) -> tuple[np.ndarray, str]:
        """Return x̂¹ of each query, (B, D), and the version of the model; a long call goes in slices."""
        costs, state = self.costs(queries), self.live.state
        check_cost(costs, "items.{}")
        if sum(costs) <= self.batcher.size:
            vectors: np.ndarray = await self.batcher.call(lambda: vectors_of(state, queries), sum(costs))
            return vectors, state.version
        parts = [
            (partial(vectors_of, state, queries[some], some.start), sum(costs[some]))
            for some in slices(costs)
        ]
        return np.concatenate(await self.batcher.call_slices(parts)), state.version

    async def in_pool(self, call: Any, *arguments: Any) -> Any:
        """Run something slow outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)

    async def queries(self, bodies: Sequence[QueryBody], field: str = "items") -> tuple[Query, ...]:
        """Return the items of a request with their images decoded."""
        if not any(body.images or body.id for body in bodies):
            return tuple(Query("", tuple(body.texts)) for body in bodies)
        check_count(body.images for body in bodies)
        with self.metrics.timed("decode"):
            await self.in_pool(check_pixels, [body.images for body in bodies])
            # One item at a time, so that concurrent requests take turns.
            names = [f"{field}.{number}" for number in range(len(bodies))]
            found = [await self.in_pool(self._query, *pair) for pair in zip(bodies, names, strict=True)]
        return tuple(found)

    def _query(self, body: QueryBody, name: str) -> Query:
        if body.id is not None:
            return self._stored(body.id)
        return Query("", tuple(body.texts), tuple(self.decoded(body.images, name)))

    def decoded(self, encoded: Sequence[str], name: str) -> list[Image.Image]:
        """Check and decode images in base64, scaled to what the model reads."""
        names = [f"{name}.images.{number}" for number in range(len(encoded))]
        return [
            decoded(from_base64(text, name), name, self.image_size)
            for text, name in zip(encoded, names, strict=True)
        ]

    def _stored(self, id: str) -> Query:
        """Return an item of the catalogue without its broken images, as in training."""
        if self.catalogue is None:
            raise Problem(422, "this service has no catalogue; send texts and images")
        row = self.catalogue.row(id)
        if row is None:
            raise Problem(422, f"there is no item {id!r} in the catalogue")
        texts = self.catalogue.items.texts[row].as_py()
        return Query(id, tuple(texts), tuple(self._readable(self.catalogue.items.pictures, row)))

    def _readable(self, images: Pictures, row: int) -> Iterator[Image.Image]:
        found: Sequence[Encoded] = ()
        with suppress(PictureError):  # a link out of the catalogue
            found = images.row(row)
        for image in found:
            with suppress(PictureError):
                yield scaled(image, self.image_size)
