"""Clients that are silent, slow or gone: others are answered, and the log says what happened."""

from __future__ import annotations

import json
import logging
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mufin.serve import connections, middleware
from mufin.serve.connections import Door
from serving import Process, listening, until

ASK = json.dumps({"items": [{"texts": ["red"]}]}).encode()


@pytest.fixture(scope="module")
def server(served: tuple[Path, Path]) -> Iterator[Any]:
    with listening(served[0], Door(8, head_seconds=0.4)) as found:
        yield found


def connected(server: Any) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def ended(client: socket.socket, send: bytes = b"") -> float:
    """Seconds until the server ends a connection on which these bytes drip."""
    started = time.monotonic()
    client.settimeout(0.05)
    for n in range(200):
        try:
            client.sendall(send[n : n + 1])
            if client.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        raise AssertionError("it is still open")
    return time.monotonic() - started


def request(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def posting(length: int) -> bytes:
    kind = "Content-Type: application/json"
    return request("/v1/recommend", kind, f"Content-Length: {length}", method="POST")


def answer(server: Any) -> int:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/v1/recommend", ASK, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=10) as found:
        return int(found.status)


def test_who_says_nothing_or_drips_is_cut(server: Any) -> None:
    with connected(server) as silent:
        assert ended(silent) < 5
    with connected(server) as slow:
        assert ended(slow, request("/healthz", "X: " + "x" * 500)) < 5
    with connected(server) as again:  # the head of the second request drips
        again.sendall(request("/healthz"))
        assert again.recv(4096).startswith(b"HTTP/1.1 200")
        assert ended(again, b"GET / HTTP/1.1\r\nX: " + b"x" * 500) < 5


def test_a_head_without_end_is_cut(served: tuple[Path, Path]) -> None:
    with listening(served[0], Door(8, head_seconds=30)) as server, connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        head = b"".join(f"X-{n}: {'x' * 1000}\r\n".encode() for n in range(20_000))
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
            client.sendall(head)
        assert answer(server) == 200


def test_a_body_that_drips_is_given_up(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "SECONDS", 0.3)
    with connected(server) as client:
        client.sendall(posting(1000) + b"{")
        said = client.recv(4096)
        assert said.startswith(b"HTTP/1.1 408")
        assert b"too slowly" in said + client.recv(4096)
        assert ended(client) < 5


def test_an_answer_that_nobody_reads_is_given_up(
    served: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.3)
    with listening(served[0], Door(8)) as server, connected(server) as client:
        client.settimeout(0.5)
        with pytest.raises(OSError, match=r"reset|[Bb]roken pipe|timed out"):
            client.sendall(request("/openapi.json") * 200_000)
        until(lambda: not server.server_state.connections, 10)
        assert answer(server) == 200


def test_more_silent_connections_than_there_is_room_for(server: Any) -> None:
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connected(server))
        assert [answer(server) for _ in range(3)] == [200] * 3
    assert len(server.server_state.connections) <= 9


def test_silent_connections_beyond_the_limit_of_open_files_are_no_outage(
    start: Callable[..., Process], texts_alone: Path
) -> None:
    """1,100 at the usual limit of 1,024 were one, with nothing in the log; here on a smaller scale."""
    service = start(texts_alone, files=256)
    port = int(service.address.rpartition(":")[2])
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        with urllib.request.urlopen(f"{service.address}/v1/model", timeout=10) as found:
            assert found.status == 200
    _, errors = service.stop(signal.SIGTERM)
    assert errors.count("128 connections are open, the maximum") == 1, errors


def test_a_client_that_goes_away_is_no_error(server: Any) -> None:
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("mufin.serve.requests", "uvicorn.error", "asyncio")]
    loggers[0].setLevel(logging.INFO)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with connected(server) as client:
            client.sendall(posting(1000) + b"{")
            time.sleep(0.1)
        until(lambda: lines, 10)
        with connected(server) as client:
            client.sendall(posting(len(ASK)) + ASK)
        until(lambda: len(lines) > 1, 10)
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert [line.levelname for line in lines] == ["INFO"] * len(lines)
    assert vars(lines[0])["status"] == 499


def test_bodies_are_held_within_a_budget(served: tuple[Path, Path]) -> None:
    """Large bodies that are on their way count together; small ones are always read."""
    length = 1 << 20
    with listening(served[0], Door(8)) as server:
        bodies = server.config.app.state.service.bodies  # type: ignore[union-attr]
        bodies.most = 3 * length // 2
        with connected(server) as first, connected(server) as second:
            first.sendall(posting(length) + b" " * (length - 1))
            until(lambda: bodies.held == length - 1, 10)
            second.sendall(posting(length) + b" " * length)
            assert second.recv(4096).startswith(b"HTTP/1.1 503")
            assert answer(server) == 200
            first.sendall(b" ")
            assert first.recv(4096).startswith(b"HTTP/1.1 422")
        until(lambda: bodies.held == 0, 10)
