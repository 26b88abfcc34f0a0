"""mufin: multi-modal extreme classification, from a catalogue to ranked labels.

>>> from mufin import Catalogue, Config, Item, fit, load
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mufin.version import VERSION as __version__

if TYPE_CHECKING:
    from mufin.config import Config
    from mufin.data.catalogue import Catalogue
    from mufin.data.item import Item
    from mufin.errors import MufinError
    from mufin.model.hits import Hit
    from mufin.model.mufin import Mufin
    from mufin.model.store import load, save
    from mufin.train.fit import fit

__all__ = ["Catalogue", "Config", "Hit", "Item", "Mufin", "MufinError", "__version__", "fit", "load", "save"]

# Names are imported when they are first used: `import mufin` does not wait for torch.
_HOMES = {
    "Catalogue": "data.catalogue",
    "Config": "config",
    "Hit": "model.hits",
    "Item": "data.item",
    "Mufin": "model.mufin",
    "MufinError": "errors",
    "fit": "train.fit",
    "load": "model.store",
    "save": "model.store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mufin' has no attribute {name!r}")
    return getattr(import_module(f"mufin.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
