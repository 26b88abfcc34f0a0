"""Guard: what every request goes through — size of the body, security headers, log, counts."""

from __future__ import annotations

import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mufin.serve.limits import LIMITS
from mufin.serve.problem import Problem
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

        try:
            self._check_host(scope)
            await self.app(scope, _bounded(scope, receive), guarded)
        except Problem as problem:  # a body that is too long shows when it is read
            await problem.response()(scope, receive, guarded)
        except Exception as error:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if not begun:
                await Problem(500, "the service failed at this; its log says why").response()(
                    scope, receive, guarded
                )
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.request(scope["method"], route, status)
            seconds = time.perf_counter() - started
            log.info("%s", scope["path"], extra=_facts(scope, status, seconds))

    def _check_host(self, scope: Scope) -> None:
        """A page elsewhere may give its own name the address of this machine; it is told from its name."""
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        if self.service.settings.local and not is_loopback(host_of(host)):
            raise Problem(421, "this service answers for localhost alone; start it with --host to open it")


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """A body of at most so many bytes; one that says it is longer is not read at all."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    too_long = Problem(413, f"the body is too long; at most {LIMITS.body_bytes:,} bytes are read")
    read = 0

    async def bounded() -> Message:
        nonlocal read
        if length.isdigit() and int(length) > LIMITS.body_bytes:
            raise too_long
        message = await receive()
        read += len(message.get("body", b""))
        if read > LIMITS.body_bytes:
            raise too_long
        return message

    return bounded


def _facts(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(1e3 * seconds, 1),
        "client": client[0] if client else None,
    }
