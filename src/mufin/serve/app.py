"""The application: all routes behind the middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from mufin.serve import problem
from mufin.serve.middleware import Middleware
from mufin.serve.routes import catalogue, explain, labels, page, recommend, status, writing
from mufin.serve.service import Service
from mufin.version import VERSION


def build_app(service: Service) -> FastAPI:
    """Return the service as an ASGI application."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(
        title="mufin",
        version=VERSION,
        summary="Ranks labels for items made of text and images",
        lifespan=lifespan,
        docs_url=None,  # both docs pages load scripts from other hosts
        redoc_url=None,
        responses=problem.DOCUMENTED,
    )
    app.state.service = service
    problem.install(app)
    for route in (recommend, explain, writing, labels, catalogue, status, page):
        app.include_router(route.router)
    app.add_middleware(Middleware, service=service)
    return app
