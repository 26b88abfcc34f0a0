"""Read mufin.json, the manifest of a model folder: format, versions, mixture, and the file of each part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mufin.files.folder import MANIFEST, invalid_manifest, is_count, read_manifest

FORMAT = 3  # version of the folder layout
REQUIRED_PARTS = {
    "config.toml", "network.safetensors", "labels.safetensors", "labels.parquet", "index.safetensors",
    "points.safetensors", "layout/text/config.json",
}  # fmt: skip
# A parser of JSON takes up to thirty times the bytes of a hostile file.
MAX_LAYOUT_BYTES, MAX_TOKENIZER_BYTES = 1 << 20, 64 << 20
LABEL_INDEPENDENT = ("config.", "network.", "layout/", "compatibility.")  # prefixes of part names


def read_model_manifest(folder: Path) -> dict[str, Any]:
    """Read and validate the manifest of a model folder."""
    manifest = read_manifest(folder, FORMAT, REQUIRED_PARTS)
    try:
        for name, expected in (
            ("own_items", bool),
            ("library", str),
            ("mixture", dict),
            ("untrained", float),
        ):
            if not isinstance(manifest[name], expected):
                raise ValueError(name)
        if not 0 <= manifest["untrained"] <= 1:
            raise ValueError("untrained")
        if not isinstance(manifest.get("trained_on", {}), dict):
            raise ValueError("trained_on")
        if not is_count(manifest["labels"]):
            raise ValueError("labels")
        for part, entry in manifest["parts"].items():
            if entry["size"] > _most_bytes(part):
                raise ValueError(f"part {part!r} has {entry['size']:,} bytes, at most {_most_bytes(part):,}")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise invalid_manifest(folder / MANIFEST, error) from None
    return manifest


def _most_bytes(part: str) -> int:
    """Return the most bytes that a part may have: those that are read into memory as a whole are limited."""
    if part == "config.toml" or part.endswith("/config.json"):
        return MAX_LAYOUT_BYTES
    return MAX_TOKENIZER_BYTES if part.startswith("layout/") else 1 << 63


def same_network(manifest: dict[str, Any], folder: Path) -> bool:
    """Return whether a folder holds this model, at most with other labels and another memory."""
    return label_independent_parts(read_model_manifest(folder)) == label_independent_parts(manifest)


def label_independent_parts(manifest: dict[str, Any]) -> dict[str, Any]:
    """Select the parts that adding and removing labels does not change."""
    return {part: entry for part, entry in manifest["parts"].items() if part.startswith(LABEL_INDEPENDENT)}
