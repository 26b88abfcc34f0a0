"""Report: what a check of a catalogue found, as text or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One kind of trouble in one file: how often, and its first places."""

    severity: Severity
    message: str
    file: str
    count: int = 1
    line: int | None = None  # of the first place, in JSONL
    row: int | None = None  # of the first place, in Parquet, counted from 1
    examples: tuple[str, ...] = ()  # the first ten, each with its place

    def __str__(self) -> str:
        place = (
            f":{self.line}" if self.line is not None else f" row {self.row}" if self.row is not None else ""
        )
        count = f" ({self.count:,})" if self.count > 1 else ""
        return f"{self.file}{place}: {self.message}{count}"


@dataclass(frozen=True)
class SplitCounts:
    """The size of a split."""

    points: int
    pairs: int

    @property
    def labels_per_point(self) -> float:
        """Relevant labels a point, on average."""
        return self.pairs / self.points if self.points else 0.0


@dataclass
class Report:
    """What is in a folder, and what is odd about it."""

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
        """False when something must be mended before this can be read."""
        return not any(problem.severity == "error" for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for `json.dumps`."""
        plain = asdict(self)
        for name, counts in self.splits.items():
            plain["splits"][name]["labels_per_point"] = round(counts.labels_per_point, 3)
        return {"usable": self.usable} | plain

    def lines(self) -> list[str]:
        """Everything, to be read by people."""
        return [*self._contents(), *troubles(self.problems), self._verdict()]

    def _contents(self) -> list[str]:
        same = " (the items themselves)" if self.own_labels else ""
        texts = f"{self.texts:,} texts, {self.items_without_text:,} items without"
        pictures = f"{self.pictures:,} pictures, {self.items_without_picture:,} items without"
        lines = [
            self.folder,
            f"  items      {self.items:,}",
            f"             {texts}",
            f"             {pictures}",
        ]
        lines.append(f"  labels     {self.labels:,}{same}")
        for name, counts in self.splits.items():
            each = f"{counts.labels_per_point:.1f} labels a point"
            lines.append(f"  {name:<10} {counts.points:,} points, {counts.pairs:,} pairs, {each}")
        lines += [f"  {name:<10} {count:,} sets" for name, count in self.sets.items()]
        lines += [f"  {name:<10} {count:,} questions" for name, count in self.questions.items()]
        return [*lines, f"  filter     {self.filter_pairs:,} pairs"] if self.filter_pairs else lines

    def _verdict(self) -> str:
        errors = sum(problem.severity == "error" for problem in self.problems)
        warnings = len(self.problems) - errors
        if errors:
            return f"Not usable: {_count(errors, 'error')}, {_count(warnings, 'warning')}."
        return f"Usable, {_count(warnings, 'warning')}." if warnings else "Usable, nothing odd."


def troubles(problems: list[Problem]) -> list[str]:
    """Problems to be read by people, errors first, each with its first places."""
    lines = []
    for problem in sorted(problems, key=lambda problem: problem.severity):
        lines.append(f"{problem.severity:<7}  {problem}")
        if problem.count > 1:
            lines += [f"           {example}" for example in problem.examples]
            more = problem.count - len(problem.examples)
            lines += [f"           … and {more:,} more"] if more and problem.examples else []
    return lines


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
