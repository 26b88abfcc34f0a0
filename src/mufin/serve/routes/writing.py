"""Writes to /v1/labels and /v1/examples, saved before they are served; and /v1/reload."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer

from mufin.data.item import Item
from mufin.model.mufin import Mufin
from mufin.serve import responses
from mufin.serve.images import check_count, check_pixels
from mufin.serve.live import State
from mufin.serve.problem import Problem
from mufin.serve.requests import ANY_ID, documented, json_body, service_of
from mufin.serve.schemas import ExampleBody, ExamplesBody, IdsBody, LabelBody, LabelsBody, check_cost
from mufin.serve.service import Service

BEARER = HTTPBearer(auto_error=False, description="The token of a service that has one")  # for the schema


async def writer(request: Request) -> None:
    """Allow a write, or raise a problem that explains why not."""
    settings = service_of(request).settings
    if not settings.writable:
        why = "start it with a token (MUFIN_TOKEN) to allow writing"
        raise Problem(403, f"this service is open to other machines and has no token; {why}")
    if settings.token is None:
        return
    # Starlette decodes headers as Latin-1; compare the bytes as they were sent.
    scheme, _, given = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
    token = settings.token.encode("utf-8", "surrogateescape")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
        raise Problem(
            401, "send Authorization: Bearer with the token of this service", {"WWW-Authenticate": "Bearer"}
        )


router = APIRouter(prefix="/v1", dependencies=[Depends(BEARER), Depends(writer)])
LABELS = {"labels": [{"id": "desk-1", "texts": ["walnut desk"]}]}
EXAMPLES = {"items": [{"texts": ["a desk of walnut"]}], "labels": [["desk-1"]]}


@router.post(
    "/labels",
    status_code=201,
    response_model=responses.AddedLabels,
    responses=responses.shown(responses.ADDED, 201),
    openapi_extra=documented(LabelsBody, LABELS),
)
async def add_labels(request: Request) -> dict[str, Any]:
    """Add labels, without training."""
    service = service_of(request)
    body = await json_body(request, LabelsBody)
    check_count(label.images for label in body.labels)
    check_cost(service.costs(body.labels), "labels.{}")
    items = await _items(service, "labels", body.labels)
    ids = [label.id for label in body.labels]

    def change(model: Mufin) -> None:  # labels may have come since the request did
        taken = [id for id in ids if model.labels.has(id)]
        if taken or len({*ids}) < len(ids):
            raise Problem(
                409, f"label {(taken or ids)[0]!r} exists already; every label needs an id of its own"
            )
        model.add_labels(items)

    state = await _change(service, change)
    return {"added": ids, "model": state.version}


@router.delete(
    "/labels",
    response_model=responses.Removed,
    responses=responses.shown(responses.REMOVED),
    openapi_extra=documented(IdsBody, {"ids": ["desk-1"]}),
)
async def remove_labels(request: Request) -> dict[str, Any]:
    """Remove labels."""
    body = await json_body(request, IdsBody)
    return await _remove(service_of(request), body.ids)


@router.delete(
    "/labels" + ANY_ID, response_model=responses.Removed, responses=responses.shown(responses.REMOVED)
)
async def remove_label(request: Request, id: str) -> dict[str, Any]:
    """Remove one label."""
    return await _remove(service_of(request), [id])


@router.post(
    "/examples",
    status_code=201,
    response_model=responses.AddedExamples,
    responses=responses.shown(responses.EXAMPLES, 201),
    openapi_extra=documented(ExamplesBody, EXAMPLES),
)
async def add_examples(request: Request) -> dict[str, Any]:
    """Remember items with their labels; they vote at once."""
    service = service_of(request)
    body = await json_body(request, ExamplesBody)
    if len(body.items) != len(body.labels):
        raise Problem(
            422, f"{len(body.items)} items, but labels for {len(body.labels)}; provide one list per item"
        )
    check_count(item.images for item in body.items)
    check_cost(service.costs(body.items), "items.{}")
    items = await _items(service, "items", body.items)
    state = await _change(service, lambda model: model.add_examples(items, body.labels))
    return {"added": len(items), "model": state.version}


@router.post("/reload", response_model=responses.Reloaded, responses=responses.shown(responses.RELOADED))
async def reload(request: Request) -> dict[str, Any]:
    """Serve the model that the folder holds now; calls under way are still answered by the old one."""
    state = await service_of(request).reload()
    return {"model": state.version, "labels": len(state.labels)}


async def _remove(service: Service, ids: list[str]) -> dict[str, Any]:
    def change(model: Mufin) -> None:
        if unknown := [id for id in ids if not model.labels.has(id)]:
            raise Problem(404, f"there is no label {unknown[0]!r}")
        model.remove_labels(ids)

    state = await _change(service, change)
    return {"removed": ids, "model": state.version}


async def _change(service: Service, change: Callable[[Mufin], None]) -> State:
    return await service.live.change(service.batcher, change)


async def _items(service: Service, field: str, bodies: Sequence[LabelBody | ExampleBody]) -> list[Item]:
    """Return the items to save, with images scaled to what the model reads."""
    await service.in_pool(check_pixels, [body.images for body in bodies])
    found = []
    for number, body in enumerate(bodies):
        name: Any = getattr(body, "id", "")
        images = await service.in_pool(service.decoded, body.images, f"{field}.{number}")
        item = Item(name, body.texts, images)
        if item.is_empty:
            raise Problem(422, f"{field}.{number} is empty; send a text or an image")
        found.append(item)
    return found
