"""The application: addresses joined to what answers them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mufin.serve import ask, explain, labels, map, page, problem, shelves, status, writing
from mufin.serve.guard import Guard
from mufin.serve.service import Service
from mufin.version import VERSION


def build_app(service: Service) -> FastAPI:
    """The service as an ASGI application."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="mufin",
        version=VERSION,
        summary="The best labels for items made of texts and pictures",
        lifespan=lifespan,
        docs_url=None,  # both load scripts from other hosts
        redoc_url=None,
        responses=problem.DOCUMENTED,
    )
    app.state.service = service
    problem.install(app)
    for part in (ask, explain, writing, labels, shelves, map, status, page):
        app.include_router(part.router)
    app.add_middleware(Guard, service=service)
    return app
