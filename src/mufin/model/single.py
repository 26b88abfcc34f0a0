"""Rank one query on a GPU with a recorded graph: Python takes longer to launch a thousand operations."""

from __future__ import annotations

import copy
import warnings
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mufin.encode.bag import PackedBags
from mufin.encode.rows import SparseRows
from mufin.model.hits import Ranked
from mufin.runtime.recorded import NotRecordable, Recorded
from mufin.signals.base import Query
from mufin.signals.evidence import evidence, proposed

if TYPE_CHECKING:
    from mufin.model.mufin import Mufin

RECORD_AFTER = 2  # queries: a recording takes as long as several


class SingleQueries:
    """`Mufin.rank` for single queries without filters, valid as long as the parts of the model stay."""

    def __init__(self, model: Mufin) -> None:
        self.model = copy.copy(model)  # keeps its parts; those of the original may change
        self.model.single = None  # else every change of the labels would keep the parts before it
        self.recorded: dict[int, Recorded] = {}  # by k
        self.asked, self.possible = 0, True

    def fits(self, model: Mufin) -> bool:
        """Return whether the model still consists of the same parts."""
        names = ("labels", "index", "points", "signals", "mixture", "embedder", "ranker")
        return all(getattr(self.model, name) is getattr(model, name) for name in names)

    @torch.no_grad()
    def rank(self, query: Query, k: int) -> Ranked | None:
        """Return the k best labels of a query; None if it must be ranked like a batch."""
        self.asked += 1
        rows = {name: _padded(rows) for name, rows in query.readings.items()}
        if not self.possible or self.asked <= RECORD_AFTER or not all(map(is_dataclass, rows.values())):
            return None
        bags = query.bags
        own = [bags.rows, *([] if bags.whole is None else [bags.whole])]
        tensors = [tensor for each in rows.values() for tensor in _tensors(each).values()]
        try:
            if k not in self.recorded:
                self.recorded[k] = Recorded(partial(self._rank, rows, len(own), k))
            found = self.recorded[k](*own, *tensors)
        except (NotRecordable, RuntimeError) as error:
            self.possible = False
            if not isinstance(error, NotRecordable):
                warnings.warn(f"single queries take longer: they cannot be recorded ({error})", stacklevel=2)
            return None
        return None if found is None else Ranked(*found)

    def _rank(self, like: dict[str, Any], n_own: int, k: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Rank the query that consists of these tensors, in the order of `rank`."""
        own, rest = tensors[:n_own], iter(tensors[n_own:])
        offsets = torch.arange(2, device=own[0].device) * len(own[0])
        bags = PackedBags(own[0], offsets, own[1] if n_own > 1 else None)
        readings = {
            name: replace(rows, **{each: next(rest) for each in _tensors(rows)})
            for name, rows in like.items()
        }
        model = self.model
        query = Query(model.known, bags, readings)
        found = proposed(model.signals, query, model.width(k))
        ranked = model.top_k(found.rows, evidence(model.signals, query, found), k)
        return tuple(vars(ranked).values())


def _padded(rows: Any) -> Any:
    return rows.padded() if isinstance(rows, SparseRows) else rows


def _tensors(rows: Any) -> dict[str, Tensor]:
    found = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}
