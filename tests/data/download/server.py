"""A server of pictures that misbehaves on request: slow, broken, redirecting, lying about length and type."""

from __future__ import annotations

import io
import socket
import ssl
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from PIL import Image

CERTIFICATE = Path(__file__).with_name("certificate.pem")  # for 127.0.0.1, with its key; nobody trusts it


def png(number: int = 0, size: int = 16) -> bytes:
    """A small picture, another for each number."""
    buffer = io.BytesIO()
    colour = (number * 37 % 256, number * 91 % 256, number // 256 % 256)
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return buffer.getvalue()


def bomb() -> bytes:
    """A PNG of a few bytes whose header says 50,000 × 50,000 pixels."""
    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    body = chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + body


class Handler(BaseHTTPRequestHandler):
    """What is asked for is in the path."""

    protocol_version = "HTTP/1.1"
    server: Server
    requests = 0  # of this connection

    def do_GET(self) -> None:
        path = urlsplit(self.path)
        self.requests += 1
        with self.server.lock:
            self.server.asked[path.path] += 1
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            getattr(
                self, "do_" + path.path.split("/")[1].replace(".", "_").replace("-", "_"), self.do_missing
            )()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with self.server.lock:
                self.server.now -= 1

    def answer(self, body: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        if length is not None:
            self.close_connection = True

    @property
    def number(self) -> int:
        return int(self.path.rsplit("/", 1)[-1].split(".")[0])

    def do_ok(self) -> None:
        self.answer(png(self.number), Content_Type="image/png")

    def do_missing(self) -> None:
        self.answer(b"nothing here", 404)

    def do_slow(self) -> None:
        time.sleep(0.2)
        self.answer(png(self.number))

    def drip(self, *heads: bytes, body: bytes | None = None) -> None:
        """Send these headers, then a byte every tenth of a second: for 8 seconds, if nobody hangs up."""
        self.wfile.write(b"\r\n".join([*heads, b"", b""]))
        for byte in (body or png(1))[:80]:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.1)
        self.close_connection = True

    def do_dribble(self) -> None:
        self.drip(b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(png(1)))

    def do_dribble_close(self) -> None:
        self.drip(b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(png(1)), b"Connection: close")

    def do_dribble_unsized(self) -> None:
        self.drip(b"HTTP/1.1 200 OK", b"Connection: close")

    def do_dribble_old(self) -> None:
        self.drip(b"HTTP/1.0 200 OK")

    def do_dribble_old_sized(self) -> None:
        self.drip(b"HTTP/1.0 200 OK", b"Content-Length: %d" % len(png(1)))

    def do_dribble_chunked(self) -> None:
        self.drip(b"HTTP/1.1 200 OK", b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 20)

    def do_dribble_error(self) -> None:
        self.drip(b"HTTP/1.0 503 Busy")

    def do_dribble_moved(self) -> None:
        self.drip(b"HTTP/1.0 302 Found", b"Location: /ok/1.png")

    def do_dribble_continue(self) -> None:
        for _ in range(80):
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.wfile.flush()
            time.sleep(0.1)

    def do_dribble_head(self) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX-Pad: " + b"x" * 100:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            time.sleep(0.1)

    def do_broken(self) -> None:
        self.close_connection = True
        self.connection.close()

    def do_fickle(self) -> None:
        """Answer the first request of a connection, and hang up at any other."""
        if self.requests > 1:
            self.do_broken()
        else:
            self.do_ok()

    def do_garbage(self) -> None:
        self.wfile.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        self.close_connection = True

    def do_redirect(self) -> None:
        to = parse_qs(urlsplit(self.path).query)["to"][0]
        self.answer(b"moved", 302, Location=to)

    def do_loop(self) -> None:
        self.answer(b"", 301, Location="/loop")

    def do_long(self) -> None:
        self.answer(png(2), length=100_000)  # says more than it sends

    def do_short(self) -> None:
        self.answer(png(2, 64), length=len(png(2, 64)) - 60)  # says less than it sends

    def do_html_as_picture(self) -> None:
        self.answer(b"<html>sorry, no hot-linking</html>", Content_Type="image/jpeg")

    def do_picture_as_html(self) -> None:
        self.answer(png(3), Content_Type="text/html")

    def do_huge_said(self) -> None:
        self.answer(png(4), length=10**12)

    def do_huge_endless(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b"\x89PNG" * 4096
        while True:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def do_bomb(self) -> None:
        self.answer(bomb())

    def do_postscript(self) -> None:
        self.answer(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", Content_Type="image/png")

    def do_empty(self) -> None:
        self.answer(b"")

    def do_flaky(self) -> None:
        if self.server.asked[urlsplit(self.path).path] < 3:
            self.answer(b"busy", 503)
        else:
            self.do_ok()

    def do_patience(self) -> None:
        if self.server.asked[urlsplit(self.path).path] < 2:
            self.answer(b"too many", 429, Retry_After="1")
        else:
            self.do_ok()

    def do_robots_txt(self) -> None:
        self.answer(b"User-agent: *\nDisallow: /slow\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """Counts what it is asked."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, tls: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: Counter[str] = Counter()
        self.now = self.most = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that hang up are part of the tests


@contextmanager
def dripping() -> Iterator[int]:
    """The port of a server that begins a TLS handshake, byte by byte, and never comes to its end."""
    ended = threading.Event()

    def drip(listening: socket.socket) -> None:
        with listening, suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16,384 bytes
                while not ended.wait(0.1):
                    connection.sendall(b"\x02")

    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(10)
    thread = threading.Thread(target=drip, args=(listening,))
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(tls: bool = False) -> Iterator[Server]:
    server = Server(tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
