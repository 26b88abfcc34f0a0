"""Connections: how many may be open, and how long a client may be silent.

uvicorn waits forever for the first byte of a request, and silently stops accepting when it runs out of file
descriptors. Here a client has a few seconds to send the head of its request, and when all connections are
taken, a new one replaces the one that has been silent longest.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS = 10.0  # to send the head of a request
HEAD_BYTES = 1 << 16  # maximum size of a head
WRITE_SECONDS = 30.0  # that a client may pause reading its answer
CONNECTIONS = 1000
RESERVED = 128  # file descriptors for everything else
LOG_EVERY = 60.0  # seconds
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)
log = logging.getLogger("mufin.serve")


def room(wanted: int = CONNECTIONS) -> int:
    """Return how many connections may be open, after raising the limit of open files if necessary."""
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
    """All connections of a server: those being answered, and those that are silent."""

    def __init__(self, most: int = CONNECTIONS, head_seconds: float = HEAD_SECONDS) -> None:
        self.most, self.head_seconds = most, head_seconds
        self._open: set[Connection] = set()
        self._silent: dict[Connection, None] = {}  # the longest silent first
        self._cut = 0  # connections since the last warning
        self._logged = -LOG_EVERY

    def enter(self, connection: Connection) -> bool:
        """Admit a connection, if necessary in place of the one that has been silent longest."""
        if len(self._open) >= self.most:
            self._warn()
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
        """Note that a request is complete and being answered."""
        self._silent.pop(connection, None)

    def idle(self, connection: Connection) -> None:
        """Note that a request is answered."""
        if connection in self._open:
            self._silent.pop(connection, None)
            self._silent[connection] = None

    def _warn(self) -> None:
        self._cut += 1
        now = time.monotonic()
        if now - self._logged >= LOG_EVERY:
            message = "%d connections are open, the maximum: %d closed or refused since the last warning"
            log.warning(message, self.most, self._cut)
            self._logged, self._cut = now, 0


class Connection(HttpToolsProtocol):
    """A connection with a deadline for the head of each request, and for reading the answer."""

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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
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
            self._head.start()  # of the next request, or the rest of a refused body
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
        if not self._answering:  # otherwise the next request is pipelined
            self.door.idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write.stop()


class Timer:
    """Close a connection after a while, unless stopped."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self.connection, self.seconds = connection, seconds
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start, unless running."""
        transport = self.connection.transport
        if self._handle is None and not transport.is_closing():
            self._handle = self.connection.loop.call_later(self.seconds, transport.abort)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
