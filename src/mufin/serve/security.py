"""Who may do what: the hosts that this service answers for, and who may write."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from fastapi import Request

from mufin.serve.body import service_of
from mufin.serve.problem import Problem


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """The name in a Host header.

    >>> host_of("localhost:8000"), host_of("[::1]:8000")
    ('localhost', '::1')
    """
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


async def writer(request: Request) -> None:
    """Lets a writing call pass, or says why not."""
    settings = service_of(request).settings
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise Problem(403, "another site's page may not write here")
    if not settings.writable:
        why = "start the service with a token (MUFIN_TOKEN) to write from elsewhere"
        raise Problem(403, f"this service is open to other machines and has no token: {why}")
    if settings.token is None:
        return
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), settings.token.encode()):
        raise Problem(
            401, "send Authorization: Bearer and the token of this service", {"WWW-Authenticate": "Bearer"}
        )
