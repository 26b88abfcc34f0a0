"""Limits of downloads, their failures, and which addresses may be contacted."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

from mufin.errors import UsageError

LONGEST = 86_400  # maximum timeout in seconds


@dataclass(frozen=True)
class Settings:
    """Limits of downloads: how many at a time, how long, how large, from which hosts."""

    workers: int = 32
    per_host: int = 8
    timeout: float = 30.0  # seconds per attempt, from the name look-up over redirects to the last byte
    retries: int = 3
    max_bytes: int = 20_000_000
    redirects: int = 5
    wait: float = 1.0  # seconds before the first retry; doubles each time
    longest_wait: float = 120.0  # seconds; limits Retry-After, too
    robots: bool = False
    allow_private: bool = False

    def __post_init__(self) -> None:
        if min(self.workers, self.per_host, self.max_bytes) < 1 or self.retries < 0:
            raise UsageError("workers, per host and size must be positive; retries must not be negative")
        if not 0 < self.timeout <= LONGEST:
            raise UsageError(
                f"timeout must be more than 0 and at most {LONGEST:,} seconds, not {self.timeout}"
            )


class Failure(Exception):
    """A failed download; `passing` if a retry may succeed, after `wait` seconds if the host said so."""

    def __init__(self, reason: str, passing: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.passing, self.wait = reason, passing, wait


SPECIAL4 = [
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host, this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; metadata of some clouds (100.100.100.200)
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the platform services of Azure, a public address that never leaves its host
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of some clouds (192.0.0.192)
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112, a sink for queries of private names
        "192.52.193.0/24",  # multicast tunnels (AMT)
        "192.88.99.0/24",  # 6to4 relays, deprecated
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
GLOBAL_UNICAST = IPv6Network("2000::/3")
SPECIAL6 = [
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID, AMT, AS112
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: a tunnel to the IPv4 address inside
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
]
MAPPED, NAT64 = IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")
ISATAP = 0x5EFE  # with either value of the universal bit, in front of the IPv4 address
UNIVERSAL = 0x0200_0000


def is_public(text: str) -> bool:
    """Return whether a host at this address is on the public internet.

    An IPv6 address that stands for an IPv4 address (mapped, NAT64) is judged as that. The other embedded
    forms (6to4, Teredo, IPv4-compatible, translated, local NAT64) are refused whatever they contain: none of
    them is global unicast today. A NAT64 prefix that a network chose for itself cannot be recognised.

    >>> [is_public(a) for a in ("93.184.216.34", "127.0.0.1", "::ffff:10.0.0.1", "169.254.169.254")]
    [True, False, False, False]
    """
    if "%" in text:  # a zone: a link-local address
        return False
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return _public4(address) if isinstance(address, IPv4Address) else _public6(address)


def _public4(address: IPv4Address) -> bool:
    return not any(address in network for network in SPECIAL4)


def _public6(address: IPv6Address) -> bool:
    last = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in MAPPED or address in NAT64:
        return _public4(last)
    if address not in GLOBAL_UNICAST or any(address in network for network in SPECIAL6):
        return False
    before = int(address) >> 32 & 0xFFFF_FFFF
    return before & ~UNIVERSAL != ISATAP or _public4(last)


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
