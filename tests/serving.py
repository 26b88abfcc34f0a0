"""Services for the tests: in this process, or as `mufin serve` in one of its own."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import uvicorn
    from starlette.testclient import TestClient

    from mufin.serve.connections import Door


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def base64_of(image: Image.Image) -> str:
    return base64.b64encode(encoded(image)).decode()


@contextmanager
def client_of(model: Path, catalogue: Path | None = None, **settings: Any) -> Iterator[TestClient]:
    """A service in this process, as a client sees it."""
    from starlette.testclient import TestClient

    from mufin.serve.app import build_app, build_service
    from mufin.serve.schemas import Settings

    service = build_service(model, catalogue, Settings(**settings))
    address = "http://127.0.0.1" if settings.get("local", True) else "http://shop.example"
    with TestClient(build_app(service), base_url=address, raise_server_exceptions=False) as client:
        client.service = service  # type: ignore[attr-defined]  # tests look inside
        yield client


def _listen() -> None:
    """Ctrl-C reaches the child, even of a test run in the background of a shell, which is deaf to it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def listening(model: Path, door: Door, **settings: Any) -> Iterator[uvicorn.Server]:
    """A service in this process behind a true socket; its port is `server.port`."""
    import threading

    from mufin.serve.app import build_service, listen, server_of
    from mufin.serve.schemas import Settings

    server = server_of(build_service(model, None, Settings(**settings)), door)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            until(lambda: server.started)
            server.port = listener.getsockname()[1]  # type: ignore[attr-defined]
            yield server
        finally:
            server.should_exit = True
            thread.join()


def _few_files(most: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Process:
    """`mufin serve` as a process."""

    def __init__(
        self, model: Path, *options: str, env: dict[str, str] | None = None, files: int | None = None
    ) -> None:
        """`files` is how many it may have open at most."""

        def prepare() -> None:
            _listen()
            if files is not None:
                _few_files(files)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "mufin", "serve", str(model), "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})},
            preexec_fn=prepare,
        )  # fmt: skip
        self.said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.match(r"Open\s+(http://\S+)/", line):
                self.address = found[1]
                return
        errors = self.process.stderr.read() if self.process.stderr else ""
        raise RuntimeError(f"the service did not start: {errors}")

    def stop(self, signal: int) -> tuple[int, str]:
        """End it with a signal; gives the exit code and what it wrote on standard error."""
        self.process.send_signal(signal)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


def until(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")
