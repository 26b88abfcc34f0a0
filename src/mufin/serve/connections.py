"""Connections: how many may be open, and how long a client may take to say what it wants.

uvicorn waits for ever for the first byte of a request, and stops accepting without a word when no file
descriptor is left. Here a client has a few seconds to send the head of its request, and the connection that
has been silent longest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS = 10.0  # until the head of a request must have come
HEAD_BYTES = 1 << 16  # that it may have
WRITE_SECONDS = 30.0  # that a client may stop reading its answer
CONNECTIONS = 1000
RESERVED = 128  # file descriptors for models, threads, saving
TOLD_EVERY = 60.0  # seconds
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)
log = logging.getLogger("mufin.serve")


def room(wanted: int = CONNECTIONS) -> int:
    """How many connections may be open, after raising the limit of open files as far as need be."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + RESERVED
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(min(wanted, soft - RESERVED), 16)


class Door:
    """All connections of a server: who is being answered, and who has said nothing yet."""

    def __init__(self, most: int = CONNECTIONS, head_seconds: float = HEAD_SECONDS) -> None:
        self.most, self.head_seconds = most, head_seconds
        self._open: set[Connection] = set()
        self._silent: dict[Connection, None] = {}  # in the order of their last word
        self._cut = 0  # since the log last told
        self._told = -TOLD_EVERY

    def enter(self, connection: Connection) -> bool:
        """Take a connection in, if need be in place of the one that is silent longest."""
        if len(self._open) >= self.most:
            self._tell()
            silent = next(iter(self._silent), None)
            if silent is None:
                return False
            self.leave(silent)
            silent.transport.abort()
        self._open.add(connection)
        self._silent[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._silent.pop(connection, None)

    def busy(self, connection: Connection) -> None:
        """A request has come whole, and is being answered."""
        self._silent.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """It is answered."""
        if connection in self._open:
            self._silent.pop(connection, None)
            self._silent[connection] = None

    def _tell(self) -> None:
        self._cut += 1
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY:
            says = "%d connections are open, which is the limit: %d cut or refused since the last such line"
            log.warning(says, self.most, self._cut)
            self._told, self._cut = now, 0


class Connection(HttpToolsProtocol):
    """A connection with a deadline for the head of each request, and for answers that nobody reads."""

    def __init__(self, door: Door, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self.door = door
        self._head = Timer(self, door.head_seconds)
        self._write = Timer(self, WRITE_SECONDS)
        self._in_head, self._head_bytes = False, 0

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.door.enter(self):
            self._head.start()
        else:
            transport.write(REFUSAL)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.leave(self)
        self._head.stop()
        self._write.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes += len(data) if self._in_head else 0
        if self._head_bytes > HEAD_BYTES:
            self.transport.abort()
        elif not self._answering:
            self._head.start()  # of the next request, or the rest of a body that nobody wants
        else:
            self._head.stop()
            if not self.cycle.more_body:
                self.door.busy(self)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._answering:  # else the next request came with this one
            self.door.idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write.stop()


class Timer:
    """Cuts a connection after a while, unless it is stopped."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self.connection, self.seconds = connection, seconds
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, if it is not running."""
        transport = self.connection.transport
        if self._handle is None and not transport.is_closing():
            self._handle = self.connection.loop.call_later(self.seconds, transport.abort)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
