"""A query as a form with files, as `curl -F` and browsers send it."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile

from mufin.serve.limits import LIMITS
from mufin.serve.problem import Problem
from mufin.serve.schemas import RecommendBody

FORM: dict[str, Any] = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "text": {"type": "array", "items": {"type": "string"}, "maxItems": LIMITS.texts},
                "image": {
                    "type": "array",
                    "items": {"type": "string", "format": "binary"},
                    "maxItems": LIMITS.images,
                },
                "k": {"type": "integer", "minimum": 1, "maximum": LIMITS.k, "default": 10},
                "explain": {"type": "boolean", "default": False},
            },
            "additionalProperties": False,
        }
    }
}


async def form_body(request: Request) -> RecommendBody:
    """One item from the fields `text` and `image`, which may be repeated; and `k`, `explain`."""
    most = LIMITS.texts + LIMITS.images
    async with request.form(max_files=LIMITS.images, max_fields=most) as form:
        unknown = {*form} - {"text", "image", "k", "explain"}
        if unknown:
            raise Problem(422, f"unknown field {min(unknown)!r}; there are text, image, k and explain")
        images = [await _picture(part) for part in form.getlist("image")]
        fields = {name: _text(form.get(name), name) for name in ("k", "explain") if name in form}
        texts = [_text(value, "text") for value in form.getlist("text")]
    return RecommendBody.model_validate(
        {"items": [{"texts": texts, "images": images}], **fields}, strict=False
    )


async def _picture(part: Any) -> str:
    if not isinstance(part, UploadFile):
        raise Problem(422, "image must be a file")
    return base64.b64encode(await part.read()).decode()


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Problem(422, f"{name} must be a text, not a file")
    return value
