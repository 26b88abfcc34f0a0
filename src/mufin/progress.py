"""Bars with an ETA on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Task(Protocol):
    """A job under way: `advance(3, loss=0.2)`."""

    def advance(self, n: int = 1, **shown: float) -> None: ...


class Progress:
    """Shows long jobs on standard error, so that standard output stays for results."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Task]:
        """Inside, the job of this name counts up to `total`."""
        if self.quiet or total == 0:
            yield _Silent()
        elif sys.stderr.isatty():
            with _bar(name, total) as bar:
                yield bar
        else:
            lines = _Lines(name, total)
            yield lines
            lines.end()

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


class _Silent:
    def advance(self, n: int = 1, **shown: float) -> None:
        pass


class _Lines:
    """A line every ten seconds, and one at the end of a job of more than two.

    What is left is reckoned from the time since the last line: pictures take longer than the texts before.
    """

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done, self.told = name, total, 0, 0
        self.started = self.printed = time.monotonic()
        self.shown: dict[str, float] = {}

    def advance(self, n: int = 1, **shown: float) -> None:
        self.done += n
        self.shown |= shown
        now = time.monotonic()
        if now - self.printed >= 10 and self.done > self.told:
            left = (now - self.printed) / (self.done - self.told) * (self.total - self.done)
            self._print(f"{self.done}/{self.total}, {left:.0f} s left")
            self.printed, self.told = now, self.done

    def end(self) -> None:
        took = time.monotonic() - self.started
        if took >= 2:
            self._print(f"{self.done}/{self.total} in {took:.0f} s")

    def _print(self, text: str) -> None:
        print(f"{self.name}: {text}{_fields(self.shown)}", file=sys.stderr, flush=True)


def _fields(shown: dict[str, float]) -> str:
    return "".join(f" · {name} {value:.4g}" for name, value in shown.items())


@contextmanager
def _bar(name: str, total: int) -> Iterator[Task]:
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(), rich.TimeRemainingColumn(), rich.TextColumn("{task.fields[shown]}"),
    )  # fmt: skip
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        number = bars.add_task(name, total=total, shown="")

        class Bar:
            def __init__(self) -> None:
                self.shown: dict[str, float] = {}

            def advance(self, n: int = 1, **shown: float) -> None:
                self.shown |= shown
                bars.update(number, advance=n, shown=_fields(self.shown))

        yield Bar()
