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

from mufin.errors import BusyError, ModelError
from mufin.files.folder import saved_checksum
from mufin.files.lock import writing
from mufin.model.labels import Labels
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

    def __init__(self, model: Mufin, folder: Path) -> None:
        self.folder = folder
        self.state = self._state(model)
        self._writing = asyncio.Lock()

    @property
    def network(self) -> str:
        """A hash of the weights, which does not change when labels are added or removed."""
        return str(self._saved(self.state.model)["parts"]["network.safetensors"]["hash"])

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
                save_labels(fresh, self.folder)
            except OSError as error:
                raise _not_kept(error) from None
            self.state = self._state(fresh)
            return self.state

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(writing(self.folder, PATIENCE))
            except OSError as error:
                raise _not_kept(error) from None
            yield

    def _catch_up(self) -> None:
        """Serve what another program has written since, unless it is another model."""
        model = self.state.model
        if saved_checksum(self.folder) == self._saved(model)["checksum"]:
            return
        try:
            fresh = reload_labels(model, self.folder)
        except ModelError as error:
            log.error("%s", error)
            raise Problem(409, "the model folder now holds another model; restart the service") from None
        self.state = self._state(fresh)

    def _state(self, model: Mufin) -> State:
        return State(model, str(self._saved(model)["checksum"])[:12])

    def _saved(self, model: Mufin) -> dict[str, Any]:
        return model.saved[self.folder.resolve()]


def _not_kept(error: OSError) -> Problem:
    log.error("the model folder cannot be written: %s", error)
    return Problem(503, "the change could not be saved, so it was not made")
