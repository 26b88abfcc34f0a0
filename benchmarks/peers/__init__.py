"""Other people's ways to rank labels, each in a file of its own; imported only when a row asks for it.

A peer is a function (catalogue, seed, **settings) → label rows (n, 100) of the test split, best first. Its
settings are chosen on a slice of the train split (`tuned`), never on the test split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from mufin import Catalogue


@dataclass(frozen=True)
class Peer:
    """Where its function is, how many seeds it is worth, and the settings that are tried."""

    module: str
    function: str
    seeds: int = 1  # more than one only where chance plays a part
    grid: tuple[dict[str, Any], ...] = ({},)
    like: str = ""  # the peer whose settings it takes

    def rank(self) -> Callable[..., np.ndarray]:
        function: Callable[..., np.ndarray] = getattr(import_module(f"peers.{self.module}"), self.function)
        return function


def every(**values: list[Any]) -> tuple[dict[str, Any], ...]:
    """All combinations of these values."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


PEERS = {
    "popularity": Peer("plain", "popular"),
    "TF-IDF neighbours": Peer("plain", "neighbours", grid=every(neighbours=[20, 50, 100])),
    "napkinXC PLT": Peer("napkin", "plt", 3, every(arity=[2], max_leaves=[50, 200], liblinear_c=[1, 10, 30])),
    # The same regressions on the same features, and too slow to be tried many times.
    "napkinXC one-vs-rest": Peer("napkin", "one_vs_rest", like="napkinXC PLT"),
    "PECOS XR-Linear": Peer(
        "xr_linear", "xr_linear", 3, every(leaf=[100, 400], c=[0.1, 1.0, 4.0], beam=[50])
    ),
    "late fusion, neighbours": Peer(
        "late", "neighbours", grid=every(text=[0.2, 0.35, 0.5, 0.65, 0.8], temperature=[0.05, 0.1, 0.2])
    ),
    "late fusion, linear": Peer(
        "late", "linear", grid=every(text=[0.2, 0.35, 0.5, 0.65, 0.8], ridge=[0.1, 0.3, 1.0, 3.0])
    ),
}


def rank(name: str, catalogue: Catalogue, seed: int, settings: dict[str, Any]) -> np.ndarray:
    """What the peer of this name predicts for the test split."""
    return PEERS[name].rank()(catalogue, seed, **settings)
