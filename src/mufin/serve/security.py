"""Who may do what: the hosts that this service answers for, and who may write."""

from __future__ import annotations

import hmac
import ipaddress
import re
from urllib.parse import urlsplit

from fastapi import Request

from mufin.serve.body import service_of
from mufin.serve.problem import Problem

HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", re.ASCII)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str | None:
    """The name or address in a Host header; None for anything but a host and a port.

    >>> host_of("localhost:8000"), host_of("[::1]:8000"), host_of("evil.example@localhost")
    ('localhost', '::1', None)
    """
    found = HOST.fullmatch(header)
    return (found[1] or found[2]).lower() if found else None


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
    # Headers are bytes, here decoded as Latin-1: a token in UTF-8 is compared as it was sent.
    scheme, _, given = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
    token = settings.token.encode("utf-8", "surrogateescape")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), token):
        raise Problem(
            401, "send Authorization: Bearer and the token of this service", {"WWW-Authenticate": "Bearer"}
        )
