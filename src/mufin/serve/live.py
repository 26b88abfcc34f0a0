"""The model that is served: a write changes a copy, saves it, and then replaces the model."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mufin.errors import BusyError, ModelError, ServiceError
from mufin.files.folder import saved_checksum
from mufin.files.lock import writing
from mufin.model.labels import Labels
from mufin.model.manifest import same_network
from mufin.model.mufin import Mufin
from mufin.model.store import reload_labels, save_labels
from mufin.serve.batching import Batcher
from mufin.serve.catalogue_view import Listing
from mufin.serve.problem import Problem

log = logging.getLogger("mufin.serve")
PATIENCE = 20.0  # seconds that a write waits for another program


@dataclass(frozen=True)
class State:
    """A model at one moment, and what is derived from it on demand."""

    model: Mufin
    version: str
    folder: Path  # that the model is saved in; not a link

    @property
    def labels(self) -> Labels:
        return self.model.labels

    def has(self, id: str) -> bool:
        """Return whether there is a living label with this id."""
        return self.labels.has(id)

    @cached_property
    def images(self) -> np.ndarray:
        """The number of images of each label, (L,)."""
        return self.labels.items.pictures.counts()

    @cached_property
    def listing(self) -> Listing:
        """The living labels, searchable by substring."""
        return Listing(self.labels.items, self.labels.alive.cpu().numpy())


class Live:
    """The current state; readers see the old labels or the new ones, never a mixture."""

    def __init__(self, model: Mufin, folder: Path, read: Callable[[Path], Mufin]) -> None:
        """Serve the model of a folder, or of a link to one; `read` loads and prepares another."""
        self.folder, self._read = folder, read
        self.state = self._state(model, folder.resolve())
        self._writing = asyncio.Lock()

    @property
    def network(self) -> str:
        """A hash of the weights, which does not change when labels are added or removed."""
        return str(_saved(self.state)["parts"]["network.safetensors"]["hash"])

    async def reload(self) -> State:
        """Serve what the folder holds now; calls under way are answered by the model they began with."""
        async with self._writing:
            return await asyncio.to_thread(self._reload)

    def outdated(self) -> bool:
        """Return whether the folder differs from what is served."""
        folder = self.folder.resolve()
        return folder != self.state.folder or saved_checksum(folder) != _saved(self.state)["checksum"]

    def _reload(self) -> State:
        """Load only the labels if nothing else has changed; on failure keep the old model."""
        if not self.outdated():
            return self.state
        folder = self.folder.resolve()
        try:
            if folder == self.state.folder and same_network(_saved(self.state), folder):
                fresh = reload_labels(self.state.model, folder)
            else:
                fresh = self._read(folder)
        except (ModelError, ServiceError, OSError) as error:
            log.error("the model folder cannot be loaded: %s", error)
            why = "the model folder cannot be loaded, so the old model is still served; see the log"
            raise Problem(409, why) from None
        self.state = self._state(fresh, folder)
        log.info("serving model %s", self.state.version)
        return self.state

    async def change(self, batcher: Batcher[Any], change: Callable[[Mufin], None]) -> State:
        """Apply `change` to a copy in the thread of the model; serve the copy once it is saved."""
        # Finish even if the client goes away, so that what is saved and what is served stay the same.
        return await asyncio.shield(asyncio.ensure_future(self._change(batcher, change)))

    async def _change(self, batcher: Batcher[Any], change: Callable[[Mufin], None]) -> State:
        loop = asyncio.get_running_loop()

        def apply(model: Mufin) -> None:
            asyncio.run_coroutine_threadsafe(batcher.call(lambda: change(model)), loop).result()

        async with self._writing:
            try:
                return await asyncio.to_thread(self._write, apply)
            except BusyError as error:
                log.warning("%s", error)
                busy = "another program is writing to the model folder; try again soon"
                raise Problem(503, busy, {"Retry-After": "5"}) from None

    def _write(self, apply: Callable[[Mufin], None]) -> State:
        """Change what the folder holds now; this thread holds the lock from reading to writing."""
        with self._locked():
            self._catch_up()
            fresh = copy.copy(self.state.model)
            apply(fresh)
            try:
                save_labels(fresh, self.state.folder)
            except OSError as error:
                raise _not_kept(error) from None
            self.state = self._state(fresh, self.state.folder)
            return self.state

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(writing(self.state.folder, PATIENCE))
            except OSError as error:
                raise _not_kept(error) from None
            yield

    def _catch_up(self) -> None:
        """Serve what another program has written since, unless it is another model."""
        if not self.outdated():
            return
        folder = self.folder.resolve()
        try:
            if folder != self.state.folder:
                raise ModelError(f"{self.folder} now points to {folder}")
            fresh = reload_labels(self.state.model, folder)
        except ModelError as error:
            log.error("%s", error)
            why = "the model folder now holds another model; reload the service (POST /v1/reload)"
            raise Problem(409, why) from None
        self.state = self._state(fresh, folder)

    def _state(self, model: Mufin, folder: Path) -> State:
        return State(model, str(model.saved[folder]["checksum"])[:12], folder)


def _saved(state: State) -> dict[str, Any]:
    """Return the manifest of what is served."""
    return state.model.saved[state.folder]


def _not_kept(error: OSError) -> Problem:
    log.error("the model folder cannot be written: %s", error)
    return Problem(503, "the change could not be saved, so it was not made")
