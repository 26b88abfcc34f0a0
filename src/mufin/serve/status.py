"""How the service is: what it serves, whether it is well, and numbers about it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from mufin.serve.body import service_of

router = APIRouter()


@router.get("/v1/model")
async def model(request: Request) -> JSONResponse:
    """What is served, and what may be asked of it."""
    return JSONResponse(service_of(request).facts())


@router.get("/healthz")
async def healthz() -> JSONResponse:
    """The process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> JSONResponse:
    """The model is loaded and takes requests."""
    return JSONResponse({"status": "ready", "model": service_of(request).live.state.version})


@router.get("/metrics")
async def metrics(request: Request) -> PlainTextResponse:
    """Counts and latencies, for Prometheus."""
    text = service_of(request).metrics.text()
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
