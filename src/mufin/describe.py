"""What a model is, as plain facts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mufin.config import Config
from mufin.presets import PRESETS

if TYPE_CHECKING:
    from mufin.model import Mufin


def describe(folder: Path, model: Mufin) -> dict[str, Any]:
    """Labels, encoders, settings and size of the model in a folder."""
    from mufin.store import read_facts  # here: settings can be compared without loading torch

    labels, config = model.labels, model.config
    preset, changed = nearest_preset(config)
    return {
        "model": str(folder),
        "library": read_facts(folder)["library"],
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "labels": len(labels),
        "labels_are_items": labels.own_items,
        "labels_without_centroid": int((~labels.has_centroid).sum()),
        "descriptors": len(labels.bags.rows),
        "dim": config.embed.dim,
        "modalities": config.modalities,
        "text_encoder": config.text.model,
        "vision_encoder": config.vision.model if config.modalities != "text" else None,
        "memory": len(model.points),
        "mixture": model.mixture.stored()["weights"],
        "alpha": _quantiles(labels.alpha.float().cpu().numpy()),
        "preset": preset,
        "settings": changed,
    }


def nearest_preset(config: Config) -> tuple[str, list[str]]:
    """The preset that needs the fewest changes to become these settings, and the changes."""
    options = {name: differences(config, Config.preset(name)) for name in PRESETS}
    name = min(options, key=lambda name: len(options[name]))
    return name, options[name]


def differences(config: Config, base: Config) -> list[str]:
    """The settings that are not as in `base`, each as `--set` takes it.

    >>> differences(Config().override(["rank.beta=0.5"]), Config())
    ['rank.beta=0.5']
    """
    new, old = _flat(config.model_dump()), _flat(base.model_dump())
    return [f"{name}={value}" for name, value in new.items() if value != old[name]]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _quantiles(alpha: npt.NDArray[np.float32]) -> dict[str, float]:
    """Smallest, quartiles and largest α, and the share of labels that are as good as untrained (α > 0.99)."""
    if not len(alpha):
        return {}
    names = ("min", "25%", "median", "75%", "max")
    values = np.quantile(alpha, [0, 0.25, 0.5, 0.75, 1])
    shares = {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}
    return shares | {"one": round(float((alpha > 0.99).mean()), 4)}
