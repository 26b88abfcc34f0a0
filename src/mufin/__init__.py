"""Rank thousands to millions of labels for items made of text and images.

>>> from mufin import Catalogue, Config, Item, fit, load
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mufin.version import VERSION as __version__

if TYPE_CHECKING:
    from mufin.client import Client
    from mufin.config import Config
    from mufin.data.catalogue import Catalogue
    from mufin.data.item import Item
    from mufin.errors import MufinError
    from mufin.model.explain import Explanation
    from mufin.model.hits import Hit, HitLists, Hits
    from mufin.model.hub import push_to_hub
    from mufin.model.mufin import Mufin
    from mufin.model.store import load, save
    from mufin.train.calibrate import plan
    from mufin.train.fit import fit

__all__ = [
    "Catalogue",
    "Client",
    "Config",
    "Explanation",
    "Hit",
    "HitLists",
    "Hits",
    "Item",
    "Mufin",
    "MufinError",
    "__version__",
    "fit",
    "load",
    "plan",
    "push_to_hub",
    "save",
]

# Names are imported on first use, so that `import mufin` need not load torch.
_MODULES = {
    "Catalogue": "data.catalogue",
    "Client": "client",
    "Config": "config",
    "Explanation": "model.explain",
    "Hit": "model.hits",
    "HitLists": "model.hits",
    "Hits": "model.hits",
    "Item": "data.item",
    "Mufin": "model.mufin",
    "MufinError": "errors",
    "fit": "train.fit",
    "load": "model.store",
    "plan": "train.calibrate",
    "push_to_hub": "model.hub",
    "save": "model.store",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'mufin' has no attribute {name!r}")
    return getattr(import_module(f"mufin.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
