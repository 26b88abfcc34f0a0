"""CheckReport: what a catalogue folder contains and what is wrong with it, as text or JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from mufin.data.problems import Problem, problem_lines


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
        lines = [
            self.folder,
            f"  items      {self.items:,}",
            f"             {self.texts:,} texts, {self.items_without_text:,} items without text",
            f"             {self.pictures:,} images, {self.items_without_picture:,} items without image",
            f"  labels     {self.labels:,}" + (" (the items themselves)" if self.own_labels else ""),
        ]
        for name, counts in self.splits.items():
            mean = f"{counts.labels_per_point:.1f} labels per point"
            lines.append(f"  {name:<10} {counts.points:,} points, {counts.pairs:,} pairs, {mean}")
        lines += [f"  {name:<10} {count:,} sets" for name, count in self.sets.items()]
        lines += [f"  {name:<10} {count:,} questions" for name, count in self.questions.items()]
        return [*lines, f"  filter     {self.filter_pairs:,} pairs"] if self.filter_pairs else lines

    def _verdict(self) -> str:
        errors = sum(problem.severity == "error" for problem in self.problems)
        warnings = len(self.problems) - errors
        if errors:
            return f"Not usable: {_plural(errors, 'error')}, {_plural(warnings, 'warning')}."
        return f"Usable, {_plural(warnings, 'warning')}." if warnings else "Usable, no problems."


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
