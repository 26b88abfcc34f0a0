"""The HTTP application: build it, run it, stop it cleanly."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from mufin.data.catalogue import Catalogue
from mufin.errors import UsageError
from mufin.model.mufin import Mufin
from mufin.model.store import load
from mufin.runtime.memory import limit_heaps
from mufin.serve import problem
from mufin.serve.connections import Connection, Door, room
from mufin.serve.middleware import Middleware
from mufin.serve.routes import catalogue, embed, explain, labels, page, recommend, status, writing
from mufin.serve.schemas import Settings
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
        docs_url=None,  # both of FastAPI's load scripts from other hosts; ours is page/docs.html
        redoc_url=None,
        responses=problem.DOCUMENTED,
    )
    app.state.service = service
    problem.install(app)
    for route in (recommend, embed, explain, writing, labels, catalogue, status, page):
        app.include_router(route.router)
    app.add_middleware(Middleware, service=service)
    return app


GRACE = 15  # seconds to finish requests after the signal to stop
SWITCH = 0.0005  # seconds until a Python thread must let another run; a query takes many turns


def build_service(folder: Path, catalogue: Path | None, settings: Settings, exact: bool = False) -> Service:
    """Return the service of a model folder."""
    limit_heaps()
    beside = None if catalogue is None else Catalogue.read(catalogue)

    def read(folder: Path) -> Mufin:
        model = load(folder, "cpu", exact)
        model.embedder.skip_early_features()
        return model

    return Service(folder, read, beside, settings)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket at this address; port 0 takes a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        reason = error.strerror or str(error)
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); try another --port") from None
    return found


def server_of(service: Service, door: Door) -> uvicorn.Server:
    """Return a server for the service, not yet running."""
    protocol: Any = partial(Connection, door)  # uvicorn calls it for each connection
    config = uvicorn.Config(
        build_app(service), http=protocol, ws="none", log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=GRACE, proxy_headers=False,
    )  # fmt: skip
    return uvicorn.Server(config)


def run(service: Service, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Answer requests until a signal comes; requests in flight are still answered."""
    sys.setswitchinterval(SWITCH)
    server = server_of(service, Door(room()))

    async def serve() -> None:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started and not task.done():
            await asyncio.sleep(0.02)
        if server.started:
            # Exempt the loaded model from garbage collection: a pass over it stops all threads for 0.3 s.
            gc.collect()
            gc.freeze()
            if hasattr(signal, "SIGHUP"):
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.reload_soon)
            ready()
        await task

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(serve())
