"""Which addresses may be connected to: HTTP on the public internet, nothing in private networks.

A name is looked up once per connection, all its addresses are judged, and the connection goes to one of them:
a name that points elsewhere a moment later (DNS rebinding) changes nothing. Redirects are judged alike.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from mufin.fetch.public import is_public
from mufin.fetch.settings import Failure

PORTS = {"http": 80, "https": 443}
LONGEST = 8000  # characters of a path and query; servers refuse more, and a short request never blocks


@dataclass(frozen=True)
class Target:
    """Where a request goes: scheme, host, port, and the path with its query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def netloc(self) -> str:
        """The host and port, as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole address."""
        return f"{self.scheme}://{self.netloc}{self.path}"


def parse(url: str, base: str | None = None) -> Target:
    """Return the target of an address, relative to `base`; raise a Failure if it may not be fetched."""
    try:
        parts = urlsplit(urljoin(base, url) if base else url)
        scheme, host = parts.scheme.lower(), parts.hostname
        port = parts.port
    except ValueError:
        raise Failure("not a URL") from None
    if scheme not in PORTS:
        raise Failure(f"scheme {scheme or 'missing'!r} is not supported, only http and https")
    if not host:
        raise Failure("a URL without a host")
    if parts.username is not None or parts.password is not None:
        raise Failure("URLs with a password are not fetched")
    if "%" in host:  # fe80::1%eth0: an address of a local link
        raise Failure("URLs with a zone or an escaped host are not fetched")
    try:
        host = host if ":" in host else host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise Failure("not a URL: invalid host") from None
    path = _quoted(parts.path or "/") + (f"?{_quoted(parts.query)}" if parts.query else "")
    if len(path) > LONGEST:
        raise Failure(f"a URL with more than {LONGEST:,} characters after the host")
    return Target(scheme, host, PORTS[scheme] if port is None else port, path)


def resolve(host: str, port: int, allow_private: bool, seconds: float = 30.0) -> list[str]:
    """Return the addresses of a host, one or more; raise a Failure if any of them is not public."""
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in _looked_up(host, port, seconds)))
    for text in addresses:
        if not allow_private and not is_public(text):
            raise Failure(f"refused: {host} is at {text}, which is not on the public internet")
    if not addresses:
        raise Failure("host not found", passing=True)
    return addresses


def _looked_up(host: str, port: int, seconds: float) -> list[Any]:
    """Ask the resolver in a thread of its own, because `getaddrinfo` has no timeout."""
    found: list[Any] = []
    errors: list[Exception] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except Exception as error:
            errors.append(error)

    # A daemon thread: an abandoned one ends when the resolver gives up, and does not delay the exit.
    thread = threading.Thread(target=look_up, name="mufin-fetch-name", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if thread.is_alive():
        raise Failure("took too long: the host name was not resolved in time", passing=True)
    if errors and not isinstance(errors[0], OSError | UnicodeError):
        raise errors[0]
    if errors:
        raise Failure("host not found", passing=True)
    return found


def _quoted(text: str) -> str:
    """Percent-encode blanks and non-ASCII characters; keep what is encoded already."""
    return "".join(
        chr(byte) if 0x20 < byte < 0x7F and chr(byte) not in '"<>\\^`{|}' else f"%{byte:02X}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
