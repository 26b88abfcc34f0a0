"""Settings of a download, and what can come of one."""

from __future__ import annotations

from dataclasses import dataclass

from mufin.errors import UsageError

LONGEST = 86_400  # seconds of a timeout; NaN and infinity are none


@dataclass(frozen=True)
class Settings:
    """How many at a time, how long, how big, and whom to trust."""

    workers: int = 32
    per_host: int = 8
    timeout: float = 30.0  # seconds for one try: look-up, connection, redirects, to the last byte
    retries: int = 3
    max_bytes: int = 20_000_000
    redirects: int = 5
    wait: float = 1.0  # seconds before the first further try; doubles each time
    longest_wait: float = 120.0  # also of what a Retry-After may ask for
    robots: bool = False
    allow_private: bool = False

    def __post_init__(self) -> None:
        if min(self.workers, self.per_host, self.max_bytes) < 1 or self.retries < 0:
            raise UsageError("workers, per host and size must be positive, retries not negative")
        if not 0 < self.timeout <= LONGEST:
            raise UsageError(f"a timeout of {self.timeout} s; give more than 0 and at most {LONGEST:,} s")


class Failure(Exception):
    """A download that failed; `passing` says that a later try may not."""

    def __init__(self, reason: str, passing: bool = False, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.passing, self.wait = reason, passing, wait
