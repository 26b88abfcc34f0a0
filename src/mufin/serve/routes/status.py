"""/v1/model, /healthz, /readyz and /metrics: what is served, and how the service is doing."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from mufin.serve import responses
from mufin.serve.metrics import CONTENT_TYPE
from mufin.serve.requests import service_of

router = APIRouter()


@router.get("/v1/model", response_model=responses.Model)
async def model(request: Request) -> Any:
    """Return what is served, and its limits."""
    return service_of(request).facts()


@router.get("/healthz", response_model=responses.Health)
async def healthz() -> Any:
    """Report that the process is alive."""
    return {"status": "ok"}


@router.get("/readyz", response_model=responses.Ready)
async def readyz(request: Request) -> Any:
    """Report that the model is loaded."""
    return {"status": "ready", "model": service_of(request).live.state.version}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> PlainTextResponse:
    """Return counts and latencies, for Prometheus."""
    return PlainTextResponse(service_of(request).metrics.text(), media_type=CONTENT_TYPE)
