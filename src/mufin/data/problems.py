"""Problem: what a check or an import found wrong in a file, with counts and examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning"]
MAX_EXAMPLES = 10  # examples kept per problem


@dataclass(frozen=True)
class Problem:
    """One kind of problem in one file: how often it occurs, and the first places."""

    severity: Severity
    message: str
    file: str
    count: int = 1
    line: int | None = None  # of the first occurrence, in JSONL and CSV
    row: int | None = None  # of the first occurrence, in Parquet, counted from 1
    examples: tuple[str, ...] = ()  # the first MAX_EXAMPLES, each with its place

    def __str__(self) -> str:
        place = (
            f":{self.line}" if self.line is not None else f" row {self.row}" if self.row is not None else ""
        )
        count = f" ({self.count:,})" if self.count > 1 else ""
        return f"{self.file}{place}: {self.message}{count}"


def problem_lines(problems: list[Problem]) -> list[str]:
    """Format problems as text, errors first, each with its examples."""
    lines = []
    for problem in sorted(problems, key=lambda problem: problem.severity):
        lines.append(f"{problem.severity:<7}  {problem}")
        if problem.count > 1:
            lines += [f"           {example}" for example in problem.examples]
            more = problem.count - len(problem.examples)
            lines += [f"           … and {more:,} more"] if more and problem.examples else []
    return lines


def add_warning(problems: list[Problem], message: str, file: str, found: Sequence[str]) -> None:
    """Append one warning for everything in `found`; append nothing when it is empty."""
    if found:
        problems.append(Problem("warning", message, file, len(found), examples=tuple(found[:MAX_EXAMPLES])))


@dataclass
class _Occurrences:
    count: int = 0
    lines: list[int] = field(default_factory=list)  # the first MAX_EXAMPLES


class BadLines:
    """Count the bad lines of files by what is wrong, and keep the first line numbers of each kind."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], _Occurrences] = {}

    def add(self, file: str, message: str, line: int | None = None, count: int = 1) -> None:
        """Count bad lines of a file."""
        found = self._found.setdefault((file, message), _Occurrences())
        found.count += count
        if line is not None and len(found.lines) < MAX_EXAMPLES:
            found.lines.append(line)

    @property
    def count(self) -> int:
        """The number of bad lines."""
        return sum(found.count for found in self._found.values())

    def problems(self) -> list[Problem]:
        """Return one warning per file and message."""
        problems = []
        for (file, message), found in self._found.items():
            first = found.lines[0] if found.lines else None
            examples = tuple(f"line {line}" for line in found.lines)
            problems.append(Problem("warning", message, file, found.count, first, examples=examples))
        return problems
