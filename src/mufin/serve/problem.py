"""Errors as application/problem+json (RFC 9457), without internals of the service."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from mufin.errors import ServiceError, UsageError

log = logging.getLogger("mufin.serve")
SHOWN = 3  # invalid fields named in a message
ITEM = '{"texts": ["oak desk"]}'
MESSAGES = {"extra_forbidden": "unknown field", "missing": "this field is required"}  # else pydantic's own


class Problem(Exception):
    """An error to answer with."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    def response(self) -> JSONResponse:
        return JSONResponse(
            {
                "type": "about:blank",
                "title": HTTPStatus(self.status).phrase,
                "status": self.status,
                "detail": self.detail,
            },
            self.status,
            self.headers,
            media_type="application/problem+json",
        )


DESCRIPTIONS: dict[int | str, str] = {422: "The request cannot be answered", "default": "An error"}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {
            "application/problem+json": {
                "schema": {
                    "type": "object",
                    "required": ["type", "title", "status", "detail"],
                    "properties": {
                        **{name: {"type": "string"} for name in ("type", "title", "detail")},
                        "status": {"type": "integer"},
                    },
                }
            }
        },
    }
    for status, description in DESCRIPTIONS.items()
}


def invalid(errors: list[Any]) -> Problem:
    """Return what pydantic found: the place of each error, without the values."""
    found = [f"{'.'.join(map(str, error['loc'])) or 'body'}: {_message(error)}" for error in errors[:SHOWN]]
    more = f"; and {len(errors) - SHOWN} more" if len(errors) > SHOWN else ""
    return Problem(422, "; ".join(found) + more)


def _message(error: Any) -> str:
    message: str = MESSAGES.get(error["type"], error["msg"])
    no_object = error["type"] in ("model_type", "model_attributes_type", "dict_type")
    return f"{message}, such as {ITEM}" if no_object and "items" in error["loc"] else message


def install(app: FastAPI) -> None:
    """Turn every error of a request into a problem."""

    async def of_problem(_: Request, error: Any) -> JSONResponse:
        return error.response()  # type: ignore[no-any-return]  # a Problem

    async def of_usage(_: Request, error: Exception) -> JSONResponse:
        return Problem(422, str(error)).response()

    async def of_search(_: Request, error: Exception) -> JSONResponse:
        log.error("%s", error)
        return Problem(503, "the search does not answer; try again soon", {"Retry-After": "5"}).response()

    async def of_validation(_: Request, error: Any) -> JSONResponse:
        return invalid(list(error.errors())).response()

    async def of_http(_: Request, error: Any) -> JSONResponse:
        detail = {404: "there is nothing at this address", 405: "this address does not support the method"}
        return Problem(
            error.status_code, detail.get(error.status_code, str(error.detail)), error.headers
        ).response()

    app.add_exception_handler(Problem, of_problem)
    app.add_exception_handler(UsageError, of_usage)
    app.add_exception_handler(ServiceError, of_search)
    app.add_exception_handler(RequestValidationError, of_validation)
    app.add_exception_handler(ValidationError, of_validation)
    app.add_exception_handler(HTTPException, of_http)
