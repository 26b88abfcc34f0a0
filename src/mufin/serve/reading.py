"""Reading: bodies come within bounds of size, of time, and of memory for all of them together."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope

from mufin.serve.limits import LIMITS
from mufin.serve.problem import Problem

SMALL = 1 << 16  # bytes; smaller bodies are always read
SECONDS = 10.0  # that a client has for its body, and more for what it has sent:
RATE = 50_000  # bytes a second


class Bodies:
    """How many bytes of large bodies are held at the moment."""

    def __init__(self, most: int = LIMITS.bodies_bytes) -> None:
        self.most, self.held = most, 0


class Reader:
    """The body of one request."""

    def __init__(self, scope: Scope, receive: Receive, bodies: Bodies) -> None:
        self._receive, self._bodies = receive, bodies
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        self._declared = int(length) if length.isdigit() else 0
        self._read = self._held = 0
        self._whole = False
        self._started = asyncio.get_running_loop().time()

    async def __call__(self) -> Message:
        """The next piece; a body that says it is too long is not read at all."""
        self._check_length(self._declared)
        message = await (self._receive() if self._whole else self._in_time())
        self._whole = self._whole or not message.get("more_body", False)
        self._read += len(message.get("body", b""))
        self._check_length(self._read)
        self._hold()
        return message

    def release(self) -> None:
        """The request is answered."""
        self._bodies.held -= self._held
        self._held = 0

    async def _in_time(self) -> Message:
        try:
            async with asyncio.timeout_at(self._started + SECONDS + self._read / RATE):
                return await self._receive()
        except TimeoutError:
            raise Problem(408, "the body came too slowly; send it again", {"Connection": "close"}) from None

    def _check_length(self, length: int) -> None:
        if length > LIMITS.body_bytes:
            raise Problem(413, f"the body is too long; at most {LIMITS.body_bytes:,} bytes are read")

    def _hold(self) -> None:
        more = self._read - self._held
        if self._read <= SMALL or not more:
            return
        if self._bodies.held + more > self._bodies.most:
            says = "too many large bodies are being read; try again soon"
            raise Problem(503, says, {"Retry-After": "1"})
        self._bodies.held += more
        self._held += more
