"""Peers: other methods to rank labels, imported only when needed.

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
    """Its function, the number of seeds, and the grid of settings to try."""

    module: str
    function: str
    seeds: int = 1  # more than one only for randomised methods
    grid: tuple[dict[str, Any], ...] = ({},)
    like: str = ""  # the peer whose tuned settings it uses

    def rank(self) -> Callable[..., np.ndarray]:
        function: Callable[..., np.ndarray] = getattr(import_module(f"peers.{self.module}"), self.function)
        return function


def grid(**values: list[Any]) -> tuple[dict[str, Any], ...]:
    """All combinations of these values."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


PEERS = {
    "popularity": Peer("plain", "popular"),
    "TF-IDF neighbours": Peer("plain", "neighbours", grid=grid(neighbours=[20, 50, 100])),
    "napkinXC PLT": Peer("napkin", "plt", 3, grid(arity=[2], max_leaves=[50, 200], liblinear_c=[1, 10, 30])),
    # The same regressions on the same features, but too slow to tune.
    "napkinXC one-vs-rest": Peer("napkin", "one_vs_rest", like="napkinXC PLT"),
    "PECOS XR-Linear": Peer("xr_linear", "xr_linear", 3, grid(leaf=[100, 400], c=[0.1, 1.0, 4.0], beam=[50])),
    "late fusion, neighbours": Peer(
        "late", "neighbours", grid=grid(text=[0.2, 0.35, 0.5, 0.65, 0.8], temperature=[0.05, 0.1, 0.2])
    ),
    "late fusion, linear": Peer(
        "late", "linear", grid=grid(text=[0.2, 0.35, 0.5, 0.65, 0.8], ridge=[0.1, 0.3, 1.0, 3.0])
    ),
}


def rank(name: str, catalogue: Catalogue, seed: int, settings: dict[str, Any]) -> np.ndarray:
    """The predictions of a peer for the test split."""
    return PEERS[name].rank()(catalogue, seed, **settings)
