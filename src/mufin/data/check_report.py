"""What `mufin check` found, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from mufin.progress import count

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
        if problem.count > 1 or problem.line is problem.row is None:
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


@dataclass(frozen=True)
class SplitCounts:
    """The size of a split."""

    points: int
    pairs: int

    @property
    def labels_per_point(self) -> float:
        """The mean number of relevant labels per point."""
        return self.pairs / self.points if self.points else 0.0


@dataclass
class CheckReport:
    """The contents of a catalogue folder and its problems."""

    folder: str
    items: int = 0
    labels: int = 0
    own_labels: bool = True  # the labels are the items themselves
    texts: int = 0
    pictures: int = 0
    items_without_text: int = 0
    items_without_picture: int = 0
    splits: dict[str, SplitCounts] = field(default_factory=dict)
    sets: dict[str, int] = field(default_factory=dict)
    questions: dict[str, int] = field(default_factory=dict)
    filter_pairs: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """False when an error prevents the catalogue from being read."""
        return not any(problem.severity == "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return everything as values for `json.dumps`."""
        plain = asdict(self)
        for name, counts in self.splits.items():
            plain["splits"][name]["labels_per_point"] = round(counts.labels_per_point, 3)
        return {"usable": self.usable} | plain

    def lines(self) -> list[str]:
        """Format everything as text."""
        return [*self._contents(), *problem_lines(self.problems), self._verdict()]

    def _contents(self) -> list[str]:
        lacking = count(self.items_without_text, "item"), count(self.items_without_picture, "item")
        lines = [
            self.folder,
            f"  items      {self.items:,}",
            f"             {count(self.texts, 'text')}, {lacking[0]} without text",
            f"             {count(self.pictures, 'image')}, {lacking[1]} without image",
            f"  labels     {self.labels:,}" + (" (the items themselves)" if self.own_labels else ""),
        ]
        for name, counts in self.splits.items():
            mean = f"{counts.labels_per_point:.1f} labels per datapoint"
            size = f"{count(counts.points, 'datapoint')}, {count(counts.pairs, 'pair')}"
            lines.append(f"  {name:<10} {size}, {mean}")
        lines += [f"  {name:<10} {count(size, 'set')}" for name, size in self.sets.items()]
        lines += [f"  {name:<10} {count(size, 'question')}" for name, size in self.questions.items()]
        return [*lines, f"  filter     {count(self.filter_pairs, 'pair')}"] if self.filter_pairs else lines

    def _verdict(self) -> str:
        errors = sum(problem.severity == "error" for problem in self.problems)
        warnings = len(self.problems) - errors
        if errors:
            return f"Not usable: {count(errors, 'error')}, {count(warnings, 'warning')}."
        return f"Usable, {count(warnings, 'warning')}." if warnings else "Usable, no problems."
