"""Summarise a model folder and compare settings with presets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from mufin.config import Config, nearest_preset
from mufin.errors import ConfigError, ModelError
from mufin.files.folder import RECOVERY_HINT, check_part
from mufin.model.manifest import read_model_manifest


def describe(folder: Path) -> dict[str, Any]:
    """Summarise the labels, encoders, settings and size of a model from its files, without torch."""
    manifest = read_model_manifest(folder)
    config = read_config(check_part(folder, manifest["parts"]["config.toml"]))
    has_centroid, alpha, descriptors = _label_facts(
        check_part(folder, manifest["parts"]["labels.safetensors"])
    )
    preset, changed = nearest_preset(config)
    return {
        "model": str(folder),
        "library": manifest["library"],
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "labels": manifest["labels"],
        "labels_are_items": manifest["own_items"],
        "labels_without_centroid": int((~has_centroid).sum()),
        "descriptors": descriptors,
        "dim": config.embed.dim,
        "modalities": config.modalities,
        "text_encoder": config.text.model,
        "vision_encoder": config.vision.model if config.modalities != "text" else None,
        "memory": _count_points(check_part(folder, manifest["parts"]["points.safetensors"])),
        "mixture": manifest["mixture"].get("weights", {}),
        "alpha": _quantiles(alpha.astype(np.float32)),
        "preset": preset,
        "settings": changed,
    }


def read_config(path: Path) -> Config:
    """Read the settings of a model."""
    try:
        return Config.read(path, check=False)
    except ConfigError as error:
        raise ModelError(str(error)) from None


def _label_facts(path: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
    """Read which labels have a centroid (L,), their α (L,), and their total number of descriptors."""
    try:
        with safe_open(path, framework="np") as file:
            rows = file.get_slice("bags").get_shape()[0]
            return file.get_tensor("has_centroid"), file.get_tensor("alpha"), int(rows)
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}): {RECOVERY_HINT}") from None


def _count_points(path: Path) -> int:
    """Count the remembered training points."""
    try:
        with safe_open(path, framework="np") as file:
            return int(file.get_slice("offsets").get_shape()[0]) - 1
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}): {RECOVERY_HINT}") from None


def _quantiles(alpha: npt.NDArray[np.float32]) -> dict[str, float]:
    """Return minimum, quartiles and maximum of α, and the share of nearly untrained labels (α > 0.99)."""
    if not len(alpha):
        return {}
    names = ("min", "25%", "median", "75%", "max")
    values = np.quantile(alpha, [0, 0.25, 0.5, 0.75, 1])
    quantiles = {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}
    return quantiles | {"one": round(float((alpha > 0.99).mean()), 4)}
