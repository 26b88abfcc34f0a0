"""Bodies of requests: JSON of a known shape, of the content type that says so."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from mufin.serve.limits import LIMITS
from mufin.serve.problem import Problem

if TYPE_CHECKING:
    from mufin.serve.service import Service

Shape = TypeVar("Shape", bound=BaseModel)
LARGE = 1 << 16  # bytes; larger bodies are parsed beside the loop
WINDOW = 1 << 20  # bytes
QUOTE = ord('"')
MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.S)  # texts as a whole; what starts a value


def service_of(request: Request) -> Service:
    """The service behind a request."""
    service: Service = request.app.state.service
    return service


def content_type(request: Request) -> str:
    """The content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_body(request: Request, shape: type[Shape]) -> Shape:
    """The body as an object of this shape; anything but JSON is refused."""
    if content_type(request) != "application/json":
        raise Problem(415, "send Content-Type: application/json")
    body = await request.body()
    if len(body) < LARGE:
        return shape.model_validate_json(body)
    parsed: Shape = await service_of(request).in_pool(_parsed, body, shape)
    return parsed


def _parsed(body: bytes, shape: type[Shape]) -> Shape:
    if count_values(body, LIMITS.values) > LIMITS.values:
        raise Problem(413, f"the body has too many values; at most {LIMITS.values:,} are parsed")
    return shape.model_validate_json(body)


def count_values(body: bytes, most: int) -> int:
    """At least how many values a JSON text has; counting ends beyond `most`.

    A parser makes all values before a schema can say that they are too many.

    >>> count_values(b'{"a": ["b, [c]", {}]}', 2), count_values(b"[" + b"{}," * 1000, 100) > 100
    (3, True)
    """
    total = 0
    for start in range(0, len(body), WINDOW):  # window by window: other threads go on between them
        total += sum(body.count(mark, start, start + WINDOW) for mark in (b",", b"[", b"{"))
        if total > most:
            break
    else:
        return total
    total = 0  # again without texts, which may have any marks
    for found in islice(MARKS.finditer(body), 4 * most):
        total += found[0][0] != QUOTE
        if total > most:
            break
    return total


def documented(shape: type[BaseModel], example: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The request body of an operation, for the OpenAPI schema."""
    content = {"application/json": {"schema": _schema(shape), "example": example}, **others}
    return {"requestBody": {"required": True, "content": content}}


def _schema(shape: type[BaseModel]) -> dict[str, Any]:
    """A schema that stands by itself: definitions are put where they are used."""
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
