"""One download: connections to judged addresses, redirects, limits of time and size."""

from __future__ import annotations

import email.utils
import http.client
import socket
import ssl
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from types import TracebackType
from typing import Any, cast

from mufin.fetch.addresses import Target, parse, resolve
from mufin.fetch.settings import Failure, Settings
from mufin.version import VERSION

CHUNK = 1 << 16
IDLE = 15.0  # seconds after which a kept connection is not used again
PASSING = (408, 425, 429, 500, 502, 503, 504)
MOVED = (301, 302, 303, 307, 308)


class Downloader:
    """Fetches addresses from any thread; connections are kept for the next picture of a host."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.idle: dict[tuple[str, str, int], deque[tuple[float, _Connection]]] = defaultdict(deque)
        self.lock = threading.Lock()

    def __enter__(self) -> Downloader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for kept in self.idle.values():
            for _, connection in kept:
                connection.close()

    def fetch(self, url: str, limit: int | None = None) -> bytes:
        """The bytes at an address, after redirects; a Failure says why there are none."""
        deadline = time.monotonic() + self.settings.timeout
        target = parse(url)
        for _ in range(self.settings.redirects + 1):
            found = self._ask(target, deadline, limit or self.settings.max_bytes)
            if isinstance(found, bytes):
                return found
            target = parse(found, target.url)
        raise Failure(f"more than {self.settings.redirects} redirects")

    def _ask(self, target: Target, deadline: float, limit: int) -> bytes | str:
        """The body, or where it has moved to."""
        kept = self._kept(target)
        if kept is not None:
            try:
                return self._exchange(kept, target, deadline, limit)
            except Failure as failure:
                # The host may have closed a connection that we kept; what it says on a new one counts.
                if not failure.passing or failure.wait is not None or time.monotonic() > deadline:
                    raise
        addresses = resolve(target, self.settings.allow_private, deadline - time.monotonic())
        return self._exchange(_Connection(target, addresses, self._tls), target, deadline, limit)

    def _exchange(self, connection: _Connection, target: Target, deadline: float, limit: int) -> bytes | str:
        good = False
        try:
            with _explained(), connection.ask(target, deadline) as answer:
                found = self._read(answer, limit)
                good = answer.isclosed() and not answer.will_close
        finally:
            if good:
                with self.lock:
                    self.idle[target.site].append((time.monotonic(), connection))
            else:
                connection.close()
        return found

    def _read(self, answer: http.client.HTTPResponse, limit: int) -> bytes | str:
        if answer.status in MOVED and answer.getheader("Location"):
            if (answer.length or 0) <= CHUNK:
                answer.read(CHUNK)
            return str(answer.getheader("Location"))
        if answer.status != 200:
            passing = answer.status in PASSING
            wait = _retry_after(answer.getheader("Retry-After")) if passing else None
            answer.read(CHUNK)
            raise Failure(f"HTTP {answer.status}", passing, wait)
        if answer.length is not None and answer.length > limit:
            raise Failure(f"bigger than {limit:,} bytes")
        parts, size = [], 0
        while part := answer.read(CHUNK):
            size += len(part)
            if size > limit:
                raise Failure(f"bigger than {limit:,} bytes")
            parts.append(part)
        if answer.length:
            raise Failure("cut short", passing=True)
        return b"".join(parts)

    def _kept(self, target: Target) -> _Connection | None:
        with self.lock:
            kept = self.idle[target.site]
            while kept:
                since, connection = kept.pop()
                if time.monotonic() - since < IDLE:
                    return connection
                connection.close()
        return None

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.sslsocket_class = _TimelyTls
        return context


class _Timely(socket.socket):
    """A socket on which everything ends by `deadline`.

    The timeout of a plain socket starts again with every byte, so a host that drips is never late.
    """

    deadline: float

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().recv_into(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        self.settimeout(_left(self.deadline))
        return super().send(*args, **kwargs)


class _TimelyTls(_Timely, ssl.SSLSocket):
    """The same with TLS."""


class _Connection(http.client.HTTPConnection):
    """A connection to the first judged address that answers; the name is for certificate and request."""

    def __init__(self, target: Target, addresses: list[str], tls: ssl.SSLContext) -> None:
        super().__init__(target.host, target.port)
        self.scheme, self.addresses, self.tls = target.scheme, addresses, tls
        self.deadline = 0.0

    def connect(self) -> None:
        plain = self._first()
        wire = self.sock = _Timely(plain.family, plain.type, plain.proto, plain.detach())
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.settimeout(_left(self.deadline))
        if self.scheme == "https":  # the timeout of a handshake holds for all of it
            wire = self.sock = cast(_TimelyTls, self.tls.wrap_socket(wire, server_hostname=self.host))
        wire.deadline = self.deadline

    def _first(self) -> socket.socket:
        """Each address has its share of the time left, so that a silent one does not use up all of it."""
        for place, address in enumerate(self.addresses[:-1]):
            with suppress(OSError):
                share = _left(self.deadline) / (len(self.addresses) - place)
                return socket.create_connection((address, self.port), share)
        return socket.create_connection((self.addresses[-1], self.port), _left(self.deadline))

    def ask(self, target: Target, deadline: float) -> http.client.HTTPResponse:
        """Send a request; the answer's head. Its body, too, ends by the deadline."""
        self.deadline = deadline
        if isinstance(self.sock, _Timely):  # kept since the last one; a new one connects when it sends
            self.sock.deadline = deadline
            self.sock.settimeout(_left(deadline))
        self.putrequest("GET", target.path, skip_host=True, skip_accept_encoding=True)
        self.putheader("Host", target.netloc)
        self.putheader("User-Agent", _agent())
        self.putheader("Accept", "image/*,*/*;q=0.1")
        self.putheader("Accept-Encoding", "identity")
        self.endheaders()
        return self.getresponse()


def _left(deadline: float) -> float:
    """Seconds until then; a TimeoutError when there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@contextmanager
def _explained() -> Iterator[None]:
    """Every way in which a connection fails, as a Failure."""
    try:
        yield
    except TimeoutError:
        raise Failure("took too long", passing=True) from None
    except ssl.SSLCertVerificationError as error:
        raise Failure(f"certificate not valid: {error.verify_message}") from None
    except http.client.IncompleteRead:
        raise Failure("cut short", passing=True) from None
    except (http.client.HTTPException, ValueError) as error:
        raise Failure(f"not HTTP ({type(error).__name__})", passing=True) from None
    except OSError as error:
        raise Failure(f"connection failed ({error.strerror or type(error).__name__})", passing=True) from None


@cache
def _agent() -> str:
    return f"mufin/{VERSION}"


def _retry_after(text: str | None) -> float | None:
    """Seconds to wait, from seconds or a date."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    date = email.utils.parsedate_tz(text)
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
