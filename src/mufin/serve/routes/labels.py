"""/v1/labels and /v1/map: list, look up and show labels."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from mufin.serve import responses
from mufin.serve.images import image_response
from mufin.serve.live import State
from mufin.serve.problem import Problem
from mufin.serve.requests import ANY_ID, service_of
from mufin.serve.schemas import LIMITS

router = APIRouter(prefix="/v1")
Words = Annotated[str, Query(max_length=200, description="Part of an id or a text")]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Count = Annotated[int, Query(ge=0, le=LIMITS.page)]


@router.get("/labels", response_model=responses.Labels, responses=responses.shown(responses.LABELS))
async def list_labels(request: Request, q: Words = "", offset: Offset = 0, limit: Count = 50) -> Any:
    """List labels in pages, all or those that match."""
    service = service_of(request)
    state = service.live.state
    rows = await service.in_pool(lambda: state.listing.find(q))
    shown = [card(state, int(row)) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "labels": shown}


@router.get("/labels" + ANY_ID + "/image/{n}", responses=responses.image(), response_class=Response)
async def label_image(request: Request, id: str, n: int) -> Response:
    """Return a small image of a label."""
    state = service_of(request).live.state
    return await image_response(state.labels.items.pictures, row_of(state, id), n, request)


FULL = {**responses.LABEL, "alpha": 0.41, "category": "furniture"}


@router.get("/labels" + ANY_ID, response_model=responses.FullLabel, responses=responses.shown(FULL))
async def one_label(request: Request, id: str) -> Any:
    """Return one label."""
    state = service_of(request).live.state
    row = row_of(state, id)
    category = state.labels.items[row].category
    return {**card(state, row), "alpha": float(state.labels.alpha[row]), "category": category}


COMPUTING = responses.shown({"state": "computing", "progress": 0.4}, 202, "Being computed; ask again")
COMPUTING[202]["model"] = responses.Computing


@router.get("/map", response_model=responses.Map, responses=COMPUTING | responses.shown(responses.MAP))
async def label_map(request: Request) -> Any:
    """Return all labels as points of a plane; 202 while they are being computed."""
    service = service_of(request)
    found = await service.map.columns(service)
    if found is None:
        waiting = responses.Computing(state="computing", progress=service.map.progress)
        return JSONResponse(waiting.model_dump(), 202, {"Retry-After": "2"})
    return found


def row_of(state: State, id: str) -> int:
    """Return the row of a living label, or answer 404."""
    row = int(state.labels.items.rows([id])[0])
    if row < 0 or not state.labels.alive[row]:
        raise Problem(404, f"there is no label {id!r}")
    return row


def card(state: State, row: int) -> dict[str, Any]:
    """Return a label as answers show it."""
    labels = state.labels
    texts = labels.items.texts[row].as_py() or []
    return {
        "id": labels.items.ids[row].as_py(),
        "text": next(iter(texts), ""),
        "texts": texts,
        "images": int(state.images[row]),
        "frequency": int(labels.frequency[row]),
        "added": not bool(labels.has_centroid[row]),
    }
