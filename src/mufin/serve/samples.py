"""Samples: what answers look like, for the OpenAPI schema."""

from __future__ import annotations

from typing import Any

HIT = {
    "label": "desk-1", "text": "walnut desk", "score": 8.31, "probability": 0.74,
    "parts": {"similarity": 0.9, "classifier": 6.2, "rarity": 1.21},
    "evidence": {"similarity": 0.72, "classifier": 0.53}, "images": 1, "relevant": None,
}  # fmt: skip
LABEL = {
    "id": "desk-1", "text": "walnut desk", "texts": ["walnut desk"], "images": 1, "frequency": 12,
    "added": False,
}  # fmt: skip
ITEM = {
    "id": "sku-7", "text": "oak desk", "texts": ["oak desk"], "images": 1, "split": "test",
    "labels": [{"id": "desk-1", "text": "walnut desk"}],
}  # fmt: skip
NEAR = {"label": "desk-2", "text": "oak desk", "similarity": 0.9, "images": 0}
RECOMMEND = {"results": [{"hits": [HIT]}], "took_ms": 14.2, "model": "c837a8feeb1d"}
EXPLAIN = {
    "query": [{"kind": "text", "text": "oak desk"}],
    "label": [
        {"kind": "text", "text": "walnut desk"},
        {"kind": "image", "n": 0, "url": "/v1/labels/desk-1/image/0"},
    ],
    "attention": [[0.7, 0.3]], "kind": "cross-attention", "alpha": 0.41, "frequency": 12, "nearest": [NEAR],
    "examples": [{"id": "sku-7", "text": "oak desk", "images": 1, "similarity": 0.62}],
}  # fmt: skip
LABELS = {"total": 1, "labels": [LABEL]}
ITEMS = {"total": 1, "items": [ITEM]}
ADDED = {"added": ["desk-1"], "model": "779674242734"}
REMOVED = {"removed": ["desk-1"], "model": "c837a8feeb1d"}
EXAMPLES = {"added": 1, "model": "779674242734"}
MAP = {
    "label": ["desk-1"], "text": ["walnut desk"], "x": [0.12], "y": [-0.4], "group": [0],
    "groups": ["desk, table"], "how": "t-SNE",
}  # fmt: skip


def shown(example: dict[str, Any], status: int = 200, says: str = "The answer") -> dict[int | str, Any]:
    """The documented answer of an operation."""
    return {status: {"description": says, "content": {"application/json": {"example": example}}}}


def picture() -> dict[int | str, Any]:
    """The documented answer of an address that gives a picture."""
    schema = {"type": "string", "format": "binary"}
    kinds = ("png", "jpeg", "webp")
    found = {"description": "The picture", "content": {f"image/{kind}": {"schema": schema} for kind in kinds}}
    return {200: found, 304: {"description": "The client has it already"}}
