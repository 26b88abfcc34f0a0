"""Metrics and logs of the service."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

Form = Literal["human", "json"]
FIELDS = ("method", "path", "status", "ms", "client")


class Human(logging.Formatter):
    """`12:03:54 POST /v1/recommend 200 23.1 ms`, coloured by status on a terminal."""

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self.colours = colours

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        if not hasattr(record, "status"):
            text = f"{clock} {record.getMessage()}"
            return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
        facts = vars(record)
        status = str(facts["status"])
        if self.colours:
            status = f"\033[{'32' if status < '400' else '33' if status < '500' else '31'}m{status}\033[0m"
        return f"{clock} {facts['method']} {_plain(facts['path'])} {status} {facts['ms']} ms"


class Json(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{when}.{int(record.msecs):03}Z", "level": record.levelname.lower()}
        facts = {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        line |= facts or {"message": record.getMessage()}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _plain(path: str) -> str:
    """Escape a path, so that it cannot add lines or colours of its own."""
    return path.encode("unicode_escape").decode() if not path.isprintable() else path


def set_up(form: Form) -> None:
    """Log to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Human(sys.stderr.isatty()))
    for name, level in (("mufin.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


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
