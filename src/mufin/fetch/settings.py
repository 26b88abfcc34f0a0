"""Settings of a download, and its failures."""

from __future__ import annotations

from dataclasses import dataclass

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
