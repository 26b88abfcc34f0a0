"""Items of the catalogue: search, look."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mufin.serve import responses, samples
from mufin.serve.body import service_of
from mufin.serve.ids import ANY_ID
from mufin.serve.labels import Count, Offset, Words, picture
from mufin.serve.problem import Problem
from mufin.serve.shelf import Shelf

router = APIRouter(prefix="/v1/items")


@router.get("", response_model=responses.Items, responses=samples.shown(samples.ITEMS))
async def list_items(
    request: Request, q: Words = "", split: str | None = None, offset: Offset = 0, limit: Count = 24
) -> Any:
    """Items in pages, all or those that match."""
    shelf = shelf_of(request)
    if split and split not in shelf.splits:
        raise Problem(422, f"there is no split {split!r}; there are: {', '.join(shelf.splits) or 'none'}")
    rows = await service_of(request).in_pool(shelf.find, q, split or None)
    shown = [shelf.card(int(row)) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "items": shown}


@router.get(ANY_ID + "/image/{n}", responses=samples.picture(), response_class=Response)
async def item_image(request: Request, id: str, n: int) -> Response:
    """A picture of an item."""
    shelf = shelf_of(request)
    return await picture(shelf.items.pictures, row_of(shelf, id), n, request)


@router.get(ANY_ID, response_model=responses.Item, responses=samples.shown(samples.ITEM))
async def one_item(request: Request, id: str) -> Any:
    """One item."""
    shelf = shelf_of(request)
    return shelf.card(row_of(shelf, id))


def shelf_of(request: Request) -> Shelf:
    """The catalogue, or 404 where there is none."""
    shelf = service_of(request).shelf
    if shelf is None:
        raise Problem(404, "this service has no catalogue; start it with --catalogue FOLDER")
    return shelf


def row_of(shelf: Shelf, id: str) -> int:
    """The row of an item, or 404."""
    row = shelf.row(id)
    if row is None:
        raise Problem(404, f"there is no item {id!r}")
    return row
