"""Show progress: bars on a terminal and in notebooks, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from mufin.runtime.usage import gigabytes, used_memory


def count(number: int, noun: str) -> str:
    """Format a number with its noun in the singular or plural.

    >>> count(1, "item"), count(2400, "item")
    ('1 item', '2,400 items')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


class Task(Protocol):
    """A running task: `advance(3, loss=0.2)`; `at("epoch 4 of 30")` shows its position."""

    def advance(self, n: int = 1, **shown: float) -> None: ...
    def at(self, where: str) -> None: ...


class _SilentTask:
    def advance(self, n: int = 1, **shown: float) -> None:
        pass

    def at(self, where: str) -> None:
        pass


SILENT: Task = _SilentTask()


class Progress:
    """Report long tasks on standard error, so that standard output holds only results."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Task]:
        """Show a task with this name and total for the duration of the block."""
        if self.quiet or total == 0:
            yield SILENT
        elif sys.stderr.isatty():
            with _bar(name, total, self) as bar:
                yield bar
        else:
            lines = (_NotebookTask if _in_notebook() else _LineTask)(name, total, self)
            yield lines
            lines.end()

    def say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def remaining(self, of_task: float) -> str:
        """Format the time left, given the seconds that the task still needs."""
        return f"{of_task:.0f} s left"

    def stage_of(self, name: str) -> str:
        """Return the full name of a task."""
        return name


QUIET = Progress(quiet=True)


class Stages(Progress):
    """Progress of a job in stages, such as a training; `expected` has the seconds of each, 0 if unknown.

    The time left is that of the current task at its present pace plus the expected time of later stages,
    scaled by how much longer or shorter than expected the stages have taken so far.
    """

    def __init__(self, expected: Mapping[str, float], quiet: bool = False) -> None:
        super().__init__(quiet)
        self.expected = expected
        self.current = ""
        self.started = self.began = time.monotonic()

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self.current, self.began = stage, time.monotonic()

    def stage_of(self, name: str) -> str:
        if not self.current:
            return name
        title = f"Stage {self._number + 1} of {len(self.expected)}: {self.current}"
        detail = name.strip().lower()
        return title if detail == self.current else f"{title}, {detail}"

    def seconds_left(self, of_task: float) -> float | None:
        """Return the seconds until the end of the last stage; None if unknown."""
        expected, now = list(self.expected.values()), time.monotonic()
        until_now = sum(expected[: self._number + 1])
        if not until_now:
            return None
        of_stage = max(of_task, expected[self._number] - (now - self.began))
        slower = (now - self.started + of_stage) / until_now  # than expected
        return of_stage + sum(expected[self._number + 1 :]) * min(max(slower, 0.2), 5.0)

    def remaining(self, of_task: float) -> str:
        left = self.seconds_left(of_task)
        said = super().remaining(of_task) if left is None else f"{roughly(left)} left in all"
        return f"{said} · {gigabytes(used)} in use" if (used := used_memory()) else said

    @property
    def _number(self) -> int:
        """The number of the current stage, from 0."""
        return list(self.expected).index(self.current) if self.current else 0


def roughly(seconds: float) -> str:
    """Format an estimated duration.

    >>> roughly(42.4), roughly(192), roughly(5000)
    ('42 s', '3 min', '1 h 23 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class _LineTask:
    """Print a line every ten seconds, and one at the end of a task of at least two seconds.

    The remaining time is estimated from the pace since the last line: images take longer than texts.
    """

    every = 10.0  # seconds between lines

    def __init__(self, name: str, total: int, progress: Progress) -> None:
        self.name, self.total, self.progress = progress.stage_of(name), total, progress
        self.done = self.done_at_print = 0
        self.started = self.printed_at = time.monotonic()
        self.where = ""
        self.shown: dict[str, float] = {}

    def advance(self, n: int = 1, **shown: float) -> None:
        self.done += n
        self.shown |= shown
        now = time.monotonic()
        if now - self.printed_at >= self.every and self.done > self.done_at_print:
            left = (now - self.printed_at) / (self.done - self.done_at_print) * (self.total - self.done)
            self._print(f"{self.done}/{self.total}, {self.progress.remaining(left)}")
            self.printed_at, self.done_at_print = now, self.done

    def at(self, where: str) -> None:
        self.where = f", {where}"

    def end(self) -> None:
        took = time.monotonic() - self.started
        if took >= 2 or self.printed_at > self.started:
            self._print(f"{self.done}/{self.total} in {took:.0f} s")

    def _print(self, text: str) -> None:
        self._show(f"{self.name}{self.where}: {text}{_fields(self.shown)}")

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
            self.bar = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]  # of IPython
        else:
            self.bar.update(shown, raw=True)


def _in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program, so that output can be updated in place."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _fields(shown: dict[str, float]) -> str:
    return "".join(f" · {name} {value:.4g}" for name, value in shown.items())


@contextmanager
def _bar(name: str, total: int, progress: Progress) -> Iterator[Task]:
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(), rich.TextColumn("{task.fields[left]}"),
        rich.TextColumn("{task.fields[shown]}"),
    )  # fmt: skip
    name = progress.stage_of(name)
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        number = bars.add_task(name, total=total, shown="", left="")
        task = bars.tasks[0]

        class Bar:
            def __init__(self) -> None:
                self.shown: dict[str, float] = {}

            def advance(self, n: int = 1, **shown: float) -> None:
                self.shown |= shown
                pace = task.time_remaining
                left = "" if pace is None else progress.remaining(pace)
                bars.update(number, advance=n, shown=_fields(self.shown), left=left)

            def at(self, where: str) -> None:
                bars.update(number, description=f"{name}, {where}")

        yield Bar()
