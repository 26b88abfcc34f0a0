"""The log: lines for people on a terminal, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

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
