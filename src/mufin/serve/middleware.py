"""Guard: what every request goes through — size of the body, security headers, log, counts."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mufin.serve.problem import Problem
from mufin.serve.reading import Reader
from mufin.serve.security import host_of, is_loopback
from mufin.serve.service import Service

log = logging.getLogger("mufin.serve.requests")
POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
GONE = 499  # what the log says, as others do, of clients that did not wait
RAW = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, begun = time.perf_counter(), 500, False

        async def guarded(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                message["headers"] = [*message.get("headers", ()), *RAW]
            await send(message)

        reader = Reader(scope, receive, self.service.bodies)
        try:
            self._check_host(scope)
            await self.app(scope, reader, guarded)
        except Problem as problem:  # a body that is too long shows when it is read
            await problem.response()(scope, receive, guarded)
        except ClientDisconnect:
            status = GONE
            log.debug("%s %s: the client went away", scope["method"], scope["path"])
        except Exception as error:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if not begun:
                await Problem(500, "the service failed at this; its log says why").response()(
                    scope, receive, guarded
                )
        finally:
            reader.release()
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.request(scope["method"], route, status)
            seconds = time.perf_counter() - started
            log.info("%s", scope["path"], extra=_facts(scope, status, seconds))

    def _check_host(self, scope: Scope) -> None:
        """A page elsewhere may give its own name the address of this machine; it is told from its name."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        host = host_of(given[0]) if len(given) == 1 else None
        if given and host is None:
            raise Problem(400, "send one Host header, with a name or an address and a port alone")
        if self.service.settings.local and not is_loopback(host or ""):
            raise Problem(421, "this service answers for localhost alone; start it with --host to open it")


def _facts(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(1e3 * seconds, 1),
        "client": client[0] if client else None,
    }
