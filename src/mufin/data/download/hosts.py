"""Queue addresses by host: a few downloads at a time each, and none while a host asks us to wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from mufin.data.download.addresses import Failure, parse


@dataclass
class _Host:
    waiting: deque[tuple[str, int]] = field(default_factory=deque)  # (address, attempts so far)
    later: list[tuple[float, str, int]] = field(default_factory=list)  # (not before, address, attempts)
    running: int = 0
    not_before: float = 0.0
    pause: float = 0.0  # seconds between downloads, from robots.txt
    in_turn: bool = False


class Hosts:
    """A queue of addresses that takes hosts in turn."""

    def __init__(self, per_host: int) -> None:
        self.per_host = per_host
        self.hosts: dict[str, _Host] = {}
        self.turns: deque[str] = deque()
        self.changed = threading.Condition()
        self.open = 0  # addresses that are not finished
        self.stopped = False

    def add(self, url: str) -> None:
        """Add an address to the queue of its host."""
        with self.changed:
            self.open += 1
            self._host(url).waiting.append((url, 0))
            self._queue(url)

    def next(self) -> tuple[str, int] | None:
        """Wait for an address and return it with its number of attempts; None when all are finished."""
        with self.changed:
            while self.open and not self.stopped:
                now = time.monotonic()
                found = self._ready(now)
                if found is not None:
                    return found
                self.changed.wait(self._until_next(now))
            self.changed.notify_all()
            return None

    def done(self, url: str) -> None:
        """Note that an address is finished."""
        with self.changed:
            self.open -= 1
            self._host(url).running -= 1
            self.changed.notify_all()

    def again(self, url: str, tries: int, wait: float, whole_host: bool) -> None:
        """Retry an address after `wait` seconds; `whole_host` holds back the others of its host, too."""
        with self.changed:
            host = self._host(url)
            host.running -= 1
            until = time.monotonic() + wait
            host.later.append((until, url, tries))
            if whole_host:
                host.not_before = max(host.not_before, until)
            self._queue(url)
            self.changed.notify_all()

    def pace(self, url: str, pause: float) -> None:
        """Leave at least `pause` seconds between downloads from this host."""
        with self.changed:
            self._host(url).pause = pause

    def stop(self) -> None:
        """Return no more addresses."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()

    def _ready(self, now: float) -> tuple[str, int] | None:
        for _ in range(len(self.turns)):
            name = self.turns.popleft()
            host = self.hosts[name]
            host.in_turn = bool(host.waiting or host.later)
            if not host.in_turn:
                continue  # finished hosts leave the rotation: there may be thousands
            self.turns.append(name)
            due = [entry for entry in host.later if entry[0] <= now]
            if due:
                host.later = [entry for entry in host.later if entry[0] > now]
                host.waiting.extend((url, tries) for _, url, tries in due)
            if host.waiting and host.running < self.per_host and host.not_before <= now:
                host.running += 1
                if host.pause:
                    host.not_before = now + host.pause
                return host.waiting.popleft()
        return None

    def _until_next(self, now: float) -> float | None:
        """Return the seconds until the next address becomes ready."""
        hosts = [self.hosts[name] for name in self.turns]
        times = [entry[0] for host in hosts for entry in host.later]
        times += [host.not_before for host in hosts if host.waiting and host.not_before > now]
        return max(0.01, min(times) - now) if times else None

    def _host(self, url: str) -> _Host:
        return self.hosts.setdefault(_name(url), _Host())

    def _queue(self, url: str) -> None:
        """Put the host of an address into the rotation."""
        host = self._host(url)
        if not host.in_turn:
            host.in_turn = True
            self.turns.append(_name(url))


def _name(url: str) -> str:
    try:
        return parse(url).host
    except Failure:
        return ""  # fails when it is fetched
