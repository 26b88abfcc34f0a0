"""The web page: the files in the folder page/, and no others."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, Response
from starlette.datastructures import Headers
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from mufin.version import VERSION

FOLDER = Path(__file__).parents[1] / "page"
TYPES = {
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}  # systems disagree on these


class PageFiles(StaticFiles):
    """Static files that a browser revalidates at every use, so that an upgrade shows at once."""

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Return the file, or 304 if the client has it."""
        # Reproducible builds give every version of a file the same time, so the tag has the version, too.
        tag = f'"{VERSION}-{stat_result.st_mtime_ns:x}-{stat_result.st_size:x}"'
        response = FileResponse(
            full_path, status_code, {"ETag": tag, "Cache-Control": "no-cache"},
            media_type=TYPES.get(Path(full_path).suffix), stat_result=stat_result,
        )  # fmt: skip
        if self.is_not_modified(response.headers, Headers(scope=scope)):
            return NotModifiedResponse(response.headers)
        return response


files = PageFiles(directory=FOLDER)
router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """Return the page."""
    return await files.get_response("index.html", request.scope)


@router.api_route("/docs", methods=["GET", "HEAD"])
async def docs(request: Request) -> Response:
    """Return the page that shows the OpenAPI schema."""
    return await files.get_response("docs.html", request.scope)


@router.api_route("/page/{name:path}", methods=["GET", "HEAD"])
async def file(name: str, request: Request) -> Response:
    """Return a style, script, font or image of the page."""
    return await files.get_response(name, request.scope)
