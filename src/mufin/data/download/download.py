"""Download one address: guarded connections, redirects, limits on time and size."""

from __future__ import annotations

import email.utils
import ssl
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import httpcore2 as httpcore

from mufin.data.download.addresses import Failure, Settings, Target, parse, resolve
from mufin.version import VERSION

CHUNK = 1 << 16  # bytes of a redirect or an error that are read to keep the connection
IDLE_SECONDS = 15.0  # after which an idle connection is closed
IDLE_CONNECTIONS = 100  # kept open at most
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
MOVED = (301, 302, 303, 307, 308)
HEADERS = (
    ("User-Agent", f"mufin/{VERSION}"),
    ("Accept", "image/*,*/*;q=0.1"),
    ("Accept-Encoding", "identity"),
)


class Downloader:
    """Fetch addresses from any thread; connections are reused for the next image of a host."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = httpcore.ConnectionPool(
            ssl_context=ssl.create_default_context(),
            max_connections=None,  # one per worker
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=GuardedBackend(settings.allow_private),
        )

    def __enter__(self) -> Downloader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pool.close()

    def fetch(self, url: str, limit: int | None = None) -> bytes:
        """Return the bytes at an address, after redirects; raise a Failure if there are none."""
        deadline = time.monotonic() + self.settings.timeout
        target = parse(url)
        for _ in range(self.settings.redirects + 1):
            found = self._get(target, deadline, limit or self.settings.max_bytes)
            if isinstance(found, bytes):
                return found
            target = parse(found, target.url)
        raise Failure(f"more than {self.settings.redirects} redirects")

    def _get(self, target: Target, deadline: float, limit: int) -> bytes | str:
        """Return the body, or the address it has moved to."""
        while True:
            trace = _Trace()
            try:
                return self._exchange(target, deadline, limit, trace)
            except Failure as failure:
                # A host may have closed a kept connection; only its answer on a new one counts.
                kept = not trace.connected and time.monotonic() < deadline
                if not kept or not failure.passing or failure.wait is not None:
                    raise

    def _exchange(self, target: Target, deadline: float, limit: int, trace: _Trace) -> bytes | str:
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        # The pool passes these on to our streams, which read them as points in time.
        timeouts = {"connect": deadline, "read": deadline, "write": deadline}
        request = self.pool.stream(
            "GET", url, headers=[*HEADERS, ("Host", target.netloc)],
            extensions={"timeout": timeouts, "trace": trace},
        )  # fmt: skip
        with _explained(), request as response:
            return _read(response, limit)


class GuardedBackend(httpcore.SyncBackend):
    """Connect to public addresses only: look up a name, judge all its addresses, connect to one of those."""

    def __init__(self, allow_private: bool) -> None:
        self.allow_private = allow_private

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to the first address that answers; each gets its share of the time left."""
        addresses = resolve(host, port, self.allow_private, _left(timeout))
        for place, address in enumerate(addresses[:-1]):
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                share = _left(timeout) / (len(addresses) - place)
                return _Stream(super().connect_tcp(address, port, share))
        return _Stream(super().connect_tcp(addresses[-1], port, _left(timeout)))


class _Stream(httpcore.NetworkStream):
    """A stream whose `timeout` is a point in time.

    A plain timeout starts again with every byte, so a host that sends one now and then is never late.
    """

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self.stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, _left(timeout))  # one packet or two: `parse` limits the address

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self.stream.start_tls(ssl_context, server_hostname, _left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


class _Trace:
    """Notice whether a request opened a connection."""

    connected = False

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        self.connected = self.connected or event == "connection.connect_tcp.started"


def _read(response: httpcore.Response, limit: int) -> bytes | str:
    headers = {
        name.lower(): value for name, value in reversed(response.headers)
    }  # the first of a name counts
    if response.status in MOVED and headers.get(b"location"):
        _drain(response)
        return headers[b"location"].decode("utf-8", "replace")
    if response.status != 200:
        _drain(response)
        passing = response.status in TEMPORARY
        wait = _retry_after(headers.get(b"retry-after", b"")) if passing else None
        raise Failure(f"HTTP {response.status}", passing, wait)
    parts, size = [], int(headers.get(b"content-length", 0))
    if size > limit:
        raise Failure(f"bigger than {limit:,} bytes")
    size = 0
    try:
        for part in response.iter_stream():
            size += len(part)
            if size > limit:
                raise Failure(f"bigger than {limit:,} bytes")
            parts.append(part)
    except httpcore.RemoteProtocolError:
        raise Failure("cut short", passing=True) from None
    return b"".join(parts)


def _drain(response: httpcore.Response) -> None:
    """Read a short body to its end: only then can the connection be used again."""
    size = 0
    for part in response.iter_stream():
        size += len(part)
        if size > CHUNK:
            return


def _left(deadline: float | None) -> float:
    """Return the seconds until then; raise a TimeoutError if there are none."""
    assert deadline is not None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@contextmanager
def _explained() -> Iterator[None]:
    """Turn every error of a connection into a Failure."""
    try:
        yield
    except (TimeoutError, httpcore.TimeoutException):
        raise Failure("took too long", passing=True) from None
    except (httpcore.NetworkError, OSError) as error:
        cause = error.args[0] if error.args else error
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise Failure(f"certificate not valid: {cause.verify_message}") from None
        reason = getattr(cause, "strerror", None) or type(cause).__name__
        raise Failure(f"connection failed ({reason})", passing=True) from None
    except (httpcore.ProtocolError, ValueError):
        raise Failure("not HTTP", passing=True) from None


def _retry_after(header: bytes) -> float | None:
    """Return the seconds to wait, from a number or a date."""
    text = header.decode("ascii", "replace").strip()
    if text.isdigit():
        return float(text)
    date = email.utils.parsedate_tz(text)
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
