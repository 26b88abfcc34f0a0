"""Which addresses may be connected to: HTTP on the public internet, and nothing behind our own door.

A name is looked up once, all its addresses are judged, and the connection goes to one that was judged: a name
that points elsewhere a moment later (DNS rebinding) changes nothing. Redirects are judged like any other.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from mufin.fetch.settings import Failure

PORTS = {"http": 80, "https": 443}
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Target:
    """Where a request goes: scheme, host and port to name in it, and the path to ask for."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def site(self) -> tuple[str, str, int]:
        """What connections can be shared by."""
        return self.scheme, self.host, self.port

    @property
    def netloc(self) -> str:
        """The host as a header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """All of it."""
        return f"{self.scheme}://{self.netloc}{self.path}"


def parse(url: str, base: str | None = None) -> Target:
    """The target of an address, relative to `base` in a redirect; a Failure when it cannot be fetched."""
    try:
        parts = urlsplit(urljoin(base, url) if base else url)
        scheme, host = parts.scheme.lower(), parts.hostname
        port = parts.port
    except ValueError:
        raise Failure("not an address") from None
    if scheme not in PORTS:
        raise Failure(f"scheme {scheme or 'missing'!r} is not fetched, only http and https")
    if not host:
        raise Failure("an address without a host")
    if parts.username is not None or parts.password is not None:
        raise Failure("an address with a password is not fetched")
    try:
        host = host if ":" in host else host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise Failure("not an address: the host cannot be read") from None
    path = _quoted(parts.path or "/") + (f"?{_quoted(parts.query)}" if parts.query else "")
    return Target(scheme, host, PORTS[scheme] if port is None else port, path)


def resolve(target: Target, allow_private: bool, seconds: float = 30.0) -> list[str]:
    """The addresses to connect to, one or more; a Failure if any of them is not public."""
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in _looked_up(target, seconds)))
    for text in addresses:
        if not allow_private and not is_public(text):
            raise Failure(f"refused: {target.host} is at {text}, which is not on the public internet")
    if not addresses:
        raise Failure("host not found", passing=True)
    return addresses


def _looked_up(target: Target, seconds: float) -> list[Any]:
    """Ask the resolver, in a thread of its own: `getaddrinfo` itself takes no limit of time."""
    found: list[Any] = []
    errors: list[Exception] = []

    def look_up() -> None:
        try:
            found.extend(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except Exception as error:
            errors.append(error)

    # A daemon: one that is given up ends when the resolver gives up, and never delays the end of the program.
    thread = threading.Thread(target=look_up, name="mufin-fetch-name", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if thread.is_alive():
        raise Failure("took too long: the host's name was not found in time", passing=True)
    if errors and not isinstance(errors[0], OSError | UnicodeError):
        raise errors[0]
    if errors:
        raise Failure("host not found", passing=True)
    return found


def is_public(text: str) -> bool:
    """True for an address of the public internet, also where it hides in another.

    >>> [is_public(a) for a in ("93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False]
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return all(one.is_global and not one.is_multicast for one in (address, *_inside(address)))


def _inside(address: Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]
    inner = [address.sixtofour] if address.sixtofour is not None else []
    inner += list(address.teredo) if address.teredo is not None else []
    if address in NAT64:
        inner.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return inner


def _quoted(text: str) -> str:
    """Blanks and letters beyond ASCII percent-encoded; what is encoded already stays."""
    return "".join(
        chr(byte) if 0x20 < byte < 0x7F and chr(byte) not in '"<>\\^`{|}' else f"%{byte:02X}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
