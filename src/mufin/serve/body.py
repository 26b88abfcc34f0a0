"""Bodies of requests: JSON of a known shape, of the content type that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from mufin.serve.problem import Problem

if TYPE_CHECKING:
    from mufin.serve.service import Service

Shape = TypeVar("Shape", bound=BaseModel)
LARGE = 1 << 16  # bytes; larger bodies are parsed beside the loop


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
    parsed: Shape = await service_of(request).in_pool(shape.model_validate_json, body)
    return parsed


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
