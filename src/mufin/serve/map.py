"""The map of all labels in two dimensions, computed once in the background and kept beside the model."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mufin.files.folder import with_checksum
from mufin.serve.layout import by_category, by_cluster
from mufin.serve.live import Live, State
from mufin.serve.problem import Problem

log = logging.getLogger("mufin.serve")
SHOWN = 100_000  # labels; of more, those with the most training points
FILE = ".mufin-map.json"  # in the model folder
NEW = 0.25  # share of labels without a place above which the map is computed again


@dataclass(frozen=True)
class Places:
    """The stored positions of labels."""

    where: dict[str, tuple[float, float, int]]  # x, y, group
    groups: list[str]
    how: str


class Map:
    """The places of the labels, valid for one network."""

    def __init__(self, live: Live) -> None:
        self.live, self.progress = live, 0.0
        self._places: Places | None = None
        self._task: asyncio.Task[None] | None = None

    async def columns(self, service: Any) -> dict[str, Any] | None:
        """Return the points, or None while they are being computed."""
        state = self.live.state
        if not len(state.labels):
            return {"label": [], "text": [], "x": [], "y": [], "group": [], "groups": [], "how": "PCA"}
        if self._places is None:
            self._places = await service.in_pool(self._read)
        fresh = self._places is not None and _known(state, self._places) >= 1 - NEW
        if not fresh and (self._task is None or self._task.done()):
            if self._task is not None and self._task.exception() is not None:
                self._task = None
                raise Problem(500, "the map could not be computed; see the log")
            self._task = asyncio.create_task(self._make(state))
        if self._places is None:
            return None
        found: dict[str, Any] = await service.in_pool(_columns, state, self._places)
        return found

    async def forget(self) -> None:
        """Drop the places of an earlier network."""
        await self.close()
        self._places = self._task = None

    async def close(self) -> None:
        """Cancel a computation that is under way."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _read(self) -> Places | None:
        try:
            kept = read_stored(self.live.state.folder / FILE)
            if kept["network"] != self.live.network:
                return None
            return Places({id: (x, y, g) for id, x, y, g in kept["places"]}, kept["groups"], kept["how"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("the stored map cannot be read (%s); it is computed again", error)
            return None

    async def _make(self, state: State) -> None:
        """Project in another process, group, store."""
        self.progress = 0.0
        try:
            self._places = await self._made(state)
        except Exception:
            log.exception("the map could not be computed")
            raise

    async def _made(self, state: State) -> Places:
        rows = shown_rows(state)
        vectors = await asyncio.to_thread(lambda: _vectors(state, rows))
        with tempfile.TemporaryDirectory(prefix="mufin-map-") as folder:
            source, target = Path(folder, "vectors.npy"), Path(folder, "points.npy")
            await asyncio.to_thread(np.save, source, vectors)
            await self._project(source, target)
            points, how = np.load(target), target.with_suffix(".txt").read_text()
        places = await asyncio.to_thread(_grouped, state, rows, vectors, points, how)
        await asyncio.to_thread(self._write, places)
        return places

    async def _project(self, source: Path, target: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mufin.serve.layout", str(source), str(target),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                self.progress = float(line)
            _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(errors.decode(errors="replace").strip()[-500:])

    def _write(self, places: Places) -> None:
        kept = {
            "network": self.live.network,
            "how": places.how,
            "groups": places.groups,
            "places": [[id, *place] for id, place in places.where.items()],
        }
        file = self.live.state.folder / FILE
        temporary = file.with_name(f"{FILE}.{os.getpid()}")  # another service may write at the same time
        try:
            temporary.write_text(json.dumps(with_checksum(kept)), "utf-8")
            temporary.replace(file)
        except OSError as error:  # a read-only folder still has a map
            log.warning("the map is not stored: %s", error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def read_stored(file: Path) -> dict[str, Any]:
    """Return a stored map; raise ValueError if any bit of it has changed."""
    text = file.read_text("utf-8")
    kept = json.loads(text)
    if not isinstance(kept, dict) or text != json.dumps(with_checksum(kept)):
        raise ValueError("its checksum does not match")
    return kept


def shown_rows(state: State) -> np.ndarray:
    """Return the living labels; of very many, those with the most training points."""
    rows = state.listing.rows
    if len(rows) <= SHOWN:
        return rows
    frequency = state.labels.frequency.cpu().numpy()[rows]
    return np.sort(rows[np.argsort(-frequency, kind="stable")[:SHOWN]])


def _vectors(state: State, rows: np.ndarray) -> np.ndarray:
    import torch

    bags = state.labels.bags.select(torch.from_numpy(rows))
    return np.asarray(bags.vectors().cpu().numpy(), np.float32)


def _texts(state: State, rows: np.ndarray) -> list[str]:
    texts = state.labels.items.texts.take(rows).to_pylist()
    return [next(iter(some or ()), "") for some in texts]


def _grouped(state: State, rows: np.ndarray, vectors: np.ndarray, points: np.ndarray, how: str) -> Places:
    table = state.labels.items.table
    if "category" in table.column_names and table.column("category").null_count < len(table):
        numbers, names = by_category(table.column("category").take(rows).to_pylist())
    else:
        numbers, names = by_cluster(vectors, _texts(state, rows), state.labels.frequency.cpu().numpy()[rows])
    ids = state.labels.items.ids.take(rows).to_pylist()
    values = zip(points.round(4).tolist(), numbers.tolist(), strict=True)
    return Places({id: (x, y, g) for id, ((x, y), g) in zip(ids, values, strict=True)}, names, how)


def _known(state: State, places: Places) -> float:
    """Return the share of living labels that have a place."""
    ids = state.labels.items.ids.take(shown_rows(state)).to_pylist()
    return sum(id in places.where for id in ids) / len(ids)


def _columns(state: State, places: Places) -> dict[str, Any]:
    """Return the map of these labels; later ones lie beside their nearest neighbour."""
    rows = shown_rows(state)
    ids = state.labels.items.ids.take(rows).to_pylist()
    where = [places.where.get(id) for id in ids]
    old = [i for i, place in enumerate(where) if place is not None]
    new = [i for i, place in enumerate(where) if place is None]
    if new and old:
        nearest = (_vectors(state, rows[new]) @ _vectors(state, rows[old]).T).argmax(1)
        for i, neighbour in zip(new, nearest, strict=True):
            x, y, group = where[old[int(neighbour)]] or (0.0, 0.0, 0)
            where[i] = (round(x + 0.004, 4), round(y + 0.004, 4), group)
    xs, ys, groups = zip(*(place or (0.0, 0.0, 0) for place in where), strict=True)
    return {
        "label": ids, "text": _texts(state, rows), "x": xs, "y": ys, "group": groups,
        "groups": places.groups, "how": places.how,
    }  # fmt: skip
