"""Load a model, listen, answer, and shut down cleanly."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from mufin.data.catalogue import Catalogue
from mufin.errors import UsageError
from mufin.heap import settle
from mufin.serve.app import build_app
from mufin.serve.connections import Connection, Door, room
from mufin.serve.limits import Settings
from mufin.serve.service import Service
from mufin.store import load

GRACE = 15  # seconds to finish requests after the signal to stop


def build_service(folder: Path, catalogue: Path | None, settings: Settings, exact: bool = False) -> Service:
    """Return the service of a model folder."""
    settle()
    beside = None if catalogue is None else Catalogue.read(catalogue)
    model = load(folder, "cpu", exact)
    model.embedder.only_embeds()
    return Service(model, folder, beside, settings)


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
    server = server_of(service, Door(room()))

    async def serve() -> None:
        task = asyncio.create_task(server.serve([listener]))
        while not server.started and not task.done():
            await asyncio.sleep(0.02)
        if server.started:
            # Exempt the loaded model from garbage collection: a pass over it stops all threads for 0.3 s.
            gc.collect()
            gc.freeze()
            ready()
        await task

    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(serve())
