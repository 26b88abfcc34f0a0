"""Numbers about the service, in the text format of Prometheus.

By hand: three kinds of numbers and one page of text need no library, and none of its global state.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.09, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ITEMS = (1, 2, 4, 8, 16, 32, 64)
STAGES = ("decode", "encode", "rank", "total")


class Histogram:
    """Counts of values by upper bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels}{"," if labels else ""}le="{bound}"}} {total}'
        braces = f"{{{labels}}}" if labels else ""
        yield f"{name}_sum{braces} {self.sum:.6f}"
        yield f"{name}_count{braces} {total}"


class Metrics:
    """Everything that is counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages = {stage: Histogram(SECONDS) for stage in STAGES}
        self._batches = Histogram(ITEMS)
        self._requests: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a query took this long."""
        with self._lock:
            self._stages[name].add(seconds)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure a stage."""
        started = perf_counter()
        yield
        self.stage(name, perf_counter() - started)

    def batch(self, items: int) -> None:
        """A batch of so many items was run."""
        with self._lock:
            self._batches.add(items)

    def request(self, method: str, route: str, status: int) -> None:
        """A request was answered."""
        with self._lock:
            self._requests[method, route, status] += 1

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        self.gauges[name] = meaning, read

    def text(self) -> str:
        """The page that Prometheus reads."""
        with self._lock:
            lines = [*_head("mufin_requests_total", "counter", "Requests answered")]
            lines += [
                f'mufin_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'
                for (method, route, status), count in sorted(self._requests.items())
            ]
            lines += _head("mufin_stage_seconds", "histogram", "Seconds a request or batch spends in a stage")
            for stage, histogram in self._stages.items():
                lines += histogram.lines("mufin_stage_seconds", f'stage="{stage}"')
            shared = "Cost of what shared a forward pass, in short texts"
            lines += _head("mufin_batch_items", "histogram", shared)
            lines += self._batches.lines("mufin_batch_items", "")
        for name, (meaning, read) in self.gauges.items():
            lines += [*_head(name, "gauge", meaning), f"{name} {read():g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
