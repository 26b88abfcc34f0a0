"""Live: the model that is served; writers change a copy, keep it on disk, and then put it in its place."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mufin.folder import MANIFEST
from mufin.labels import Labels
from mufin.model import Mufin
from mufin.serve.batching import Batcher
from mufin.serve.listing import Listing
from mufin.serve.problem import Problem
from mufin.store import save_labels

log = logging.getLogger("mufin.serve")


@dataclass(frozen=True)
class State:
    """A model as it was at one moment, and what is worked out from it when first needed."""

    model: Mufin
    version: str

    @property
    def labels(self) -> Labels:
        return self.model.labels

    def has(self, id: str) -> bool:
        """Whether there is a living label of this id."""
        row = int(self.labels.items.rows([id])[0])
        return row >= 0 and bool(self.labels.alive[row])

    @cached_property
    def pictures(self) -> np.ndarray:
        """How many pictures each label has, (L,)."""
        return self.labels.items.pictures.counts()

    @cached_property
    def listing(self) -> Listing:
        """The living labels, to be searched by substring."""
        return Listing(self.labels.items, self.labels.alive.cpu().numpy())


class Live:
    """The one reference that readers follow: they see the old labels or the new ones."""

    def __init__(self, model: Mufin, folder: Path) -> None:
        self.folder = folder
        self.state = State(model, _version(folder))
        self._writing = asyncio.Lock()

    async def change(self, batcher: Batcher[Any], change: Callable[[Mufin], None]) -> State:
        """Apply `change` to a copy in the thread of the model; it is served once the folder holds it."""
        # To the end, even if whoever asked goes away: what is kept and what is served stay the same.
        return await asyncio.shield(asyncio.ensure_future(self._change(batcher, change)))

    async def _change(self, batcher: Batcher[Any], change: Callable[[Mufin], None]) -> State:
        async with self._writing:
            if _version(self.folder) != self.state.version:
                raise Problem(409, "another program changed the model folder; start the service again")
            fresh = copy.copy(self.state.model)
            await batcher.call(lambda: change(fresh))
            try:
                await asyncio.to_thread(save_labels, fresh, self.folder)
            except OSError as error:
                log.error("the model folder cannot be written: %s", error)
                raise Problem(503, "the change could not be kept, so it was not made") from None
            self.state = State(fresh, _version(self.folder))
            return self.state


def _version(folder: Path) -> str:
    """A short name for what the folder holds."""
    return hashlib.blake2b((folder / MANIFEST).read_bytes(), digest_size=6).hexdigest()
