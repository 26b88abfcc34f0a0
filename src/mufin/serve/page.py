"""The web page: the files that lie beside this one, and no others."""

from __future__ import annotations

import hashlib
import mimetypes
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mufin.serve.problem import Problem

FOLDER = Path(__file__).parent / "page"
TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
router = APIRouter(include_in_schema=False)


@router.get("/")
async def index(request: Request) -> Response:
    """The page."""
    return _file("index.html", request)


@router.get("/page/{name:path}")
async def file(name: str, request: Request) -> Response:
    """A style, script or picture of the page."""
    return _file(name, request)


def _file(name: str, request: Request) -> Response:
    # The name is looked up among the files there are; it is never made into a path.
    files = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
    path = files.get(name)
    if path is None:
        raise Problem(404, "there is nothing at this address")
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return cacheable(path.read_bytes(), kind, request, "no-cache")


def cacheable(content: bytes, kind: str, request: Request, cache: str) -> Response:
    """Bytes with an ETag, or 304 where the browser has them."""
    tag = f'"{hashlib.blake2b(content, digest_size=8).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": cache}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=kind, headers=headers)
