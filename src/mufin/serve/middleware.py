"""Middleware: limits on bodies, host and site checks, security headers, log and counts of requests."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mufin.serve.problem import Problem
from mufin.serve.schemas import LIMITS

if TYPE_CHECKING:
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
GONE = 499  # status in the log if the client went away, as in nginx
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)
SAFE = ("GET", "HEAD", "OPTIONS")  # methods that change nothing; other sites cannot read the answers
SMALL = 1 << 16  # bytes; smaller bodies are always read
SECONDS = 10.0  # for a body, plus the time that its bytes take at this rate:
RATE = 50_000  # bytes per second


class Middleware:
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

        body = Body(scope, receive, self.service.bodies)
        try:
            self._check_host(scope)
            if scope["method"] not in SAFE:
                check_site(scope)
            await self.app(scope, body, guarded)
        except Problem as problem:  # a body that turns out to be too long
            await problem.response()(scope, receive, guarded)
        except ClientDisconnect:
            status = GONE
            log.debug("%s %s: the client went away", scope["method"], scope["path"])
        except Exception as error:
            log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if not begun:
                await Problem(500, "the service failed; see its log").response()(scope, receive, guarded)
        finally:
            body.release()
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.request(scope["method"], route, status)
            seconds = time.perf_counter() - started
            log.info("%s", scope["path"], extra=_facts(scope, status, seconds))

    def _check_host(self, scope: Scope) -> None:
        """Refuse foreign names: an attacker's page may point its own name to this machine (DNS rebinding)."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        host = host_of(given[0]) if len(given) == 1 else None
        if given and host is None:
            raise Problem(400, "send one Host header with a name or an address, and perhaps a port")
        if self.service.settings.local and not is_loopback(host or ""):
            raise Problem(421, "this service answers only to localhost; start it with --host to open it")


def check_site(scope: Scope) -> None:
    """Refuse what a browser sends for a page of another site; programs send neither header."""
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None:  # by the browser itself, whatever a proxy does to Host
        foreign = site not in ("same-origin", "none")
    else:
        foreign = origin is not None and origin.partition("://")[2] != headers.get(b"host")
    if foreign:
        raise Problem(403, "pages of other sites may not send this")


class Bodies:
    """How many bytes of large bodies are in memory."""

    def __init__(self, most: int = LIMITS.bodies_bytes) -> None:
        self.most, self.held = most, 0


class Body:
    """The body of one request, limited in size, time and share of memory."""

    def __init__(self, scope: Scope, receive: Receive, bodies: Bodies) -> None:
        self._receive, self._bodies = receive, bodies
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self._declared = int(length) if length.isdigit() else 0
        self._read = self._held = 0
        self._whole = False
        self._started = asyncio.get_running_loop().time()

    async def __call__(self) -> Message:
        """Return the next part; a body that is declared too long is not read at all."""
        self._check_length(self._declared)
        message = await (self._receive() if self._whole else self._in_time())
        self._whole = self._whole or not message.get("more_body", False)
        self._read += len(message.get("body", b""))
        self._check_length(self._read)
        self._hold()
        return message

    def release(self) -> None:
        """Release the memory once the request is answered."""
        self._bodies.held -= self._held
        self._held = 0

    async def _in_time(self) -> Message:
        try:
            async with asyncio.timeout_at(self._started + SECONDS + self._read / RATE):
                return await self._receive()
        except TimeoutError:
            raise Problem(408, "the body came too slowly; send it again", {"Connection": "close"}) from None

    def _check_length(self, length: int) -> None:
        if length > LIMITS.body_bytes:
            raise Problem(413, f"the body is too long; at most {LIMITS.body_bytes:,} bytes are allowed")

    def _hold(self) -> None:
        more = self._read - self._held
        if self._read <= SMALL or not more:
            return
        if self._bodies.held + more > self._bodies.most:
            says = "too many large bodies are being read; try again soon"
            raise Problem(503, says, {"Retry-After": "1"})
        self._bodies.held += more
        self._held += more


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str | None:
    """Return the name or address in a Host header; None for anything but a host and a port.

    >>> host_of("localhost:8000"), host_of("[::1]:8000"), host_of("evil.example@localhost")
    ('localhost', '::1', None)
    """
    found = HOST.fullmatch(header)
    return (found[1] or found[2]).lower() if found else None


def _facts(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(1e3 * seconds, 1),
        "client": client[0] if client else None,
    }
