"""Show progress: bars on a terminal and in notebooks, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol


def count(number: int, noun: str) -> str:
    """Format a number with its noun in the singular or plural.

    >>> count(1, "item"), count(2400, "item")
    ('1 item', '2,400 items')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Task(Protocol):
    """A running task: `advance(3, loss=0.2)`."""

    def advance(self, n: int = 1, **shown: float) -> None: ...


class Progress:
    """Report long tasks on standard error, so that standard output holds only results."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Task]:
        """Show a task with this name and total for the duration of the block."""
        if self.quiet or total == 0:
            yield _SilentTask()
        elif sys.stderr.isatty():
            with _bar(name, total) as bar:
                yield bar
        else:
            lines = (_NotebookTask if _in_notebook() else _LineTask)(name, total)
            yield lines
            lines.end()

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)


class _SilentTask:
    def advance(self, n: int = 1, **shown: float) -> None:
        pass


class _LineTask:
    """Print a line every ten seconds, and one at the end of a task of at least two seconds.

    The remaining time is estimated from the pace since the last line: images take longer than texts.
    """

    every = 10.0  # seconds between lines

    def __init__(self, name: str, total: int) -> None:
        self.name, self.total, self.done, self.done_at_print = name, total, 0, 0
        self.started = self.printed_at = time.monotonic()
        self.shown: dict[str, float] = {}

    def advance(self, n: int = 1, **shown: float) -> None:
        self.done += n
        self.shown |= shown
        now = time.monotonic()
        if now - self.printed_at >= self.every and self.done > self.done_at_print:
            left = (now - self.printed_at) / (self.done - self.done_at_print) * (self.total - self.done)
            self._print(f"{self.done}/{self.total}, {left:.0f} s left")
            self.printed_at, self.done_at_print = now, self.done

    def end(self) -> None:
        took = time.monotonic() - self.started
        if took >= 2 or self.printed_at > self.started:
            self._print(f"{self.done}/{self.total} in {took:.0f} s")

    def _print(self, text: str) -> None:
        self._show(f"{self.name}: {text}{_fields(self.shown)}")

    def _show(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class _NotebookTask(_LineTask):
    """Show a bar below a notebook cell and update it in place."""

    every = 0.3
    bar: Any = None

    def _show(self, line: str) -> None:
        from IPython.display import display

        html = f'<progress value="{self.done}" max="{self.total}"></progress> {escape(line)}'
        shown = {"text/plain": line, "text/html": html}
        if self.bar is None:
            self.bar = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self.bar.update(shown, raw=True)


def _in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program, so that output can be updated in place."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


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
