"""Labels: list, look, add, remove; and further examples."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from mufin.data.pictures import Pictures
from mufin.serve import responses, samples
from mufin.serve.body import service_of
from mufin.serve.ids import ANY_ID
from mufin.serve.images import cacheable, shown
from mufin.serve.limits import LIMITS
from mufin.serve.live import State
from mufin.serve.problem import Problem

router = APIRouter(prefix="/v1/labels")
Words = Annotated[str, Query(max_length=200, description="Part of an id or a text")]
Offset = Annotated[int, Query(ge=0, le=2**31)]
Count = Annotated[int, Query(ge=0, le=LIMITS.page)]


@router.get("", response_model=responses.Labels, responses=samples.shown(samples.LABELS))
async def list_labels(request: Request, q: Words = "", offset: Offset = 0, limit: Count = 50) -> Any:
    """Labels in pages, all or those that match."""
    service = service_of(request)
    state = service.live.state
    rows = await service.in_pool(lambda: state.listing.find(q))
    shown = [card(state, int(row)) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "labels": shown}


@router.get(ANY_ID + "/image/{n}", responses=samples.picture(), response_class=Response)
async def label_image(request: Request, id: str, n: int) -> Response:
    """A small picture of a label."""
    state = service_of(request).live.state
    return await picture(state.labels.items.pictures, row_of(state, id), n, request)


FULL = {**samples.LABEL, "alpha": 0.41, "category": "furniture"}


@router.get(ANY_ID, response_model=responses.FullLabel, responses=samples.shown(FULL))
async def one_label(request: Request, id: str) -> Any:
    """One label."""
    state = service_of(request).live.state
    row = row_of(state, id)
    category = state.labels.items[row].category
    return {**card(state, row), "alpha": float(state.labels.alpha[row]), "category": category}


async def picture(pictures: Pictures, row: int, n: int, request: Request) -> Response:
    """The n-th image of a row, encoded again."""
    content, kind = await service_of(request).in_pool(shown, pictures, row, n)
    return cacheable(content, kind, request)


def row_of(state: State, id: str) -> int:
    """The row of a living label, or 404."""
    row = int(state.labels.items.rows([id])[0])
    if row < 0 or not state.labels.alive[row]:
        raise Problem(404, f"there is no label {id!r}")
    return row


def card(state: State, row: int) -> dict[str, Any]:
    """What is shown of a label."""
    labels = state.labels
    texts = labels.items.texts[row].as_py() or []
    return {
        "id": labels.items.ids[row].as_py(),
        "text": next(iter(texts), ""),
        "texts": texts,
        "images": int(state.pictures[row]),
        "frequency": int(labels.frequency[row]),
        "added": not bool(labels.has_centroid[row]),
    }
