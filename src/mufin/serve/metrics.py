"""Metrics of the service, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.09, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
COSTS = (1, 2, 4, 8, 16, 32, 64)
STAGES = ("decode", "encode", "rank", "total")


class Metrics:
    """The metrics of one service, in a registry of its own: two services in a process do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "mufin_requests", "Requests answered", ("method", "route", "status"), registry=self.registry
        )
        seconds = Histogram(
            "mufin_stage_seconds", "Seconds that a request or batch spends in a stage", ("stage",),
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self._stages = {stage: seconds.labels(stage) for stage in STAGES}
        self._batches = Histogram(
            "mufin_batch_items", "Cost of the items in a forward pass, in short texts",
            buckets=COSTS, registry=self.registry,
        )  # fmt: skip

    def stage(self, name: str, seconds: float) -> None:
        """Record the seconds that a stage took."""
        self._stages[name].observe(seconds)

    def timed(self, name: str) -> AbstractContextManager[object]:
        """Record how long a `with` block takes, as a stage."""
        return self._stages[name].time()

    def batch(self, cost: int) -> None:
        """Record a forward pass over items of this cost."""
        self._batches.observe(cost)

    def request(self, method: str, route: str, status: int) -> None:
        """Count an answered request."""
        self._requests.labels(method, route, str(status)).inc()

    def gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that calls `read` at each scrape."""
        Gauge(name, description, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """Return all metrics, as Prometheus reads them."""
        return generate_latest(self.registry)
