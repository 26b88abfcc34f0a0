"""What mufin.json says of a model: format, versions, the mixture of scores, and where each part is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mufin.files.folder import MANIFEST, foreign, is_count, read_manifest

FORMAT = 3
PARTS = {
    "config.toml", "network.safetensors", "labels.safetensors", "labels.parquet", "index.safetensors",
    "points.safetensors", "layout/text/config.json",
}  # fmt: skip
UNCHANGED = ("config.", "network.", "layout/", "compatibility.")  # parts that changes of labels leave alone


def read_facts(folder: Path) -> dict[str, Any]:
    """The checked manifest of a model folder."""
    manifest = read_manifest(folder, FORMAT, PARTS)
    try:
        for name, kind in (("own_items", bool), ("library", str), ("mixture", dict), ("untrained", float)):
            if not isinstance(manifest[name], kind):
                raise ValueError(name)
        if not 0 <= manifest["untrained"] <= 1:
            raise ValueError("untrained")
        if not is_count(manifest["labels"]):
            raise ValueError("labels")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise foreign(folder / MANIFEST, error) from None
    return manifest


def unchanged_parts(manifest: dict[str, Any]) -> dict[str, Any]:
    """The parts that adding and removing labels does not change."""
    return {part: entry for part, entry in manifest["parts"].items() if part.startswith(UNCHANGED)}
