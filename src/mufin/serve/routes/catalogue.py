"""/v1/items: list, look up and show items of the catalogue."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mufin.serve import responses
from mufin.serve.catalogue_view import CatalogueView
from mufin.serve.images import image_response
from mufin.serve.problem import Problem
from mufin.serve.requests import ANY_ID, service_of
from mufin.serve.routes.labels import Count, Offset, Words

router = APIRouter(prefix="/v1/items")


@router.get("", response_model=responses.Items, responses=responses.shown(responses.ITEMS))
async def list_items(
    request: Request, q: Words = "", split: str | None = None, offset: Offset = 0, limit: Count = 24
) -> Any:
    """List items in pages, all or those that match."""
    view = view_of(request)
    if split and split not in view.splits:
        raise Problem(422, f"there is no split {split!r}; splits: {', '.join(view.splits) or 'none'}")
    rows = await service_of(request).in_pool(view.find, q, split or None)
    shown = [view.card(int(row)) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "items": shown}


@router.get(ANY_ID + "/image/{n}", responses=responses.image(), response_class=Response)
async def item_image(request: Request, id: str, n: int) -> Response:
    """Return an image of an item."""
    view = view_of(request)
    return await image_response(view.items.pictures, row_of(view, id), n, request)


@router.get(ANY_ID, response_model=responses.Item, responses=responses.shown(responses.ITEM))
async def one_item(request: Request, id: str) -> Any:
    """Return one item."""
    view = view_of(request)
    return view.card(row_of(view, id))


def view_of(request: Request) -> CatalogueView:
    """Return the catalogue, or answer 404 if there is none."""
    view = service_of(request).catalogue
    if view is None:
        raise Problem(404, "this service has no catalogue; start it with --catalogue FOLDER")
    return view


def row_of(view: CatalogueView, id: str) -> int:
    """Return the row of an item, or answer 404."""
    row = view.row(id)
    if row is None:
        raise Problem(404, f"there is no item {id!r}")
    return row
