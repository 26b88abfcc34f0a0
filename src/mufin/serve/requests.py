"""Read requests: ids in addresses, JSON bodies of a known shape, forms with files."""

from __future__ import annotations

import base64
import re
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import UploadFile

from mufin.serve.problem import Problem
from mufin.serve.schemas import LIMITS, RecommendBody

if TYPE_CHECKING:
    from mufin.serve.service import Service

Shape = TypeVar("Shape", bound=BaseModel)
LARGE = 1 << 16  # bytes; larger bodies are parsed outside the event loop
WINDOW = 1 << 16  # bytes
QUOTE = ord('"')
MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.S)  # strings as a whole; what starts a value


class Id(PathConvertor):
    """Ids in addresses: any text. Starlette's `path` does not match line breaks."""

    regex = r"[\s\S]*"


register_url_convertor("id", Id())
ANY_ID = "/{id:id}"  # the part of a route

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


def service_of(request: Request) -> Service:
    """Return the service behind a request."""
    service: Service = request.app.state.service
    return service


def content_type(request: Request) -> str:
    """Return the content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_body(request: Request, shape: type[Shape]) -> Shape:
    """Return the body as an object of this shape; refuse anything but JSON."""
    if content_type(request) != "application/json":
        raise Problem(415, "send Content-Type: application/json")
    body = await request.body()
    if len(body) < LARGE:
        return shape.model_validate_json(body)
    parsed: Shape = await service_of(request).in_pool(_parsed, body, shape)
    return parsed


def _parsed(body: bytes, shape: type[Shape]) -> Shape:
    if count_values(body, LIMITS.values) > LIMITS.values:
        raise Problem(413, f"the body has too many values; at most {LIMITS.values:,} are allowed")
    return shape.model_validate_json(body)


def count_values(body: bytes, most: int) -> int:
    """Return a lower bound on the number of values in a JSON text; stop counting beyond `most`.

    A parser creates all values before a schema can refuse them.

    >>> count_values(b'{"a": ["b, [c]", {}]}', 2), count_values(b"[" + b"{}," * 1000, 100) > 100
    (3, True)
    """
    total = 0
    for start in range(0, len(body), WINDOW):  # in windows, so that other threads can run in between
        total += sum(body.count(mark, start, start + WINDOW) for mark in (b",", b"[", b"{"))
        if total > most:
            break
    else:
        return total
    total = 0  # count again without strings, which may contain any of the marks
    for found in islice(MARKS.finditer(body), 4 * most):
        total += found[0][0] != QUOTE
        if total > most:
            break
    return total


async def form_body(request: Request) -> RecommendBody:
    """Return one item from the fields `text` and `image`, which may be repeated, with `k` and `explain`."""
    most = LIMITS.texts + LIMITS.images
    async with request.form(max_files=LIMITS.images, max_fields=most) as form:
        unknown = {*form} - {"text", "image", "k", "explain"}
        if unknown:
            raise Problem(422, f"unknown field {min(unknown)!r}; the fields are text, image, k and explain")
        images = [await _image(part) for part in form.getlist("image")]
        fields = {name: _text(form.get(name), name) for name in ("k", "explain") if name in form}
        texts = [_text(value, "text") for value in form.getlist("text")]
    return RecommendBody.model_validate(
        {"items": [{"texts": texts, "images": images}], **fields}, strict=False
    )


async def _image(part: Any) -> str:
    if not isinstance(part, UploadFile):
        raise Problem(422, "image must be a file")
    return base64.b64encode(await part.read()).decode()


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Problem(422, f"{name} must be a text, not a file")
    return value


def documented(shape: type[BaseModel], example: dict[str, Any], **others: Any) -> dict[str, Any]:
    """Return the request body of an operation, for the OpenAPI schema."""
    content = {"application/json": {"schema": _schema(shape), "example": example}, **others}
    return {"requestBody": {"required": True, "content": content}}


def _schema(shape: type[BaseModel]) -> dict[str, Any]:
    """Return a self-contained schema, with definitions inlined."""
    schema = shape.model_json_schema()
    definitions = schema.pop("$defs", {})

    def inline(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                return inline(definitions[node["$ref"].rsplit("/", 1)[1]])
            return {name: inline(value) for name, value in node.items()}
        return [inline(value) for value in node] if isinstance(node, list) else node

    found: dict[str, Any] = inline(schema)
    return found
