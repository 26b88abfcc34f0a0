"""How the service is: what it serves, whether it is well, and numbers about it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from mufin.serve import responses
from mufin.serve.body import service_of
from mufin.serve.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/v1/model", response_model=responses.Model)
async def model(request: Request) -> Any:
    """What is served, and what may be asked of it."""
    return service_of(request).facts()


@router.get("/healthz", response_model=responses.Health)
async def healthz() -> Any:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", response_model=responses.Ready)
async def readyz(request: Request) -> Any:
    """The model is loaded and takes requests."""
    return {"status": "ready", "model": service_of(request).live.state.version}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Counts and latencies, for Prometheus."""
    return PlainTextResponse(service_of(request).metrics.text(), media_type=CONTENT_TYPE)
