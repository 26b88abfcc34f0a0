"""The results of `accuracy.py`: a JSON file that grows row by row, and Markdown tables made from it."""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

TEST_COLUMNS = ("P@1", "P@5", "nDCG@5", "R@10", "tail R@10", "R@100", "PSP@5", "ECE top 10", "ECE top 1")
Run = dict[str, Any]  # figures of one row and one seed

HEAD = """# Accuracy on {name}

Written by `benchmarks/accuracy.py`; test split, percent, mean ± standard deviation over seeds.
*tail R@10* is the recall of labels with at most 5 training points, over the points that have one; *ECE* is
the expected calibration error of `hit.probability` (15 bins, between 0 and 1) over ten hits and the first.
"""


class Results:
    """The results on a catalogue: runs by task and row, and what is derived from them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if self.values and "test" not in self.values:  # written by the first version of the script
            self.values = {"test": self.values}

    def runs(self, task: str, row: str) -> list[Run]:
        found: list[Run] = self.values.get(task, {}).get(row, [])
        return found

    def has(self, task: str, row: str, seed: int) -> bool:
        """Whether a run exists; failed runs are repeated."""
        return any(run.get("seed") == seed and "failed" not in run for run in self.runs(task, row))

    def add(self, task: str, row: str, run: Run) -> None:
        """Put a run in the place of the one with its seed.

        Drop runs that failed, name no seed, or had other settings: their mean would describe no model.
        """
        kept = [old for old in self.runs(task, row) if "seed" in old and old["seed"] != run["seed"]]
        kept = [old for old in kept if "failed" not in old and old.get("settings") == run.get("settings")]
        runs = sorted([*kept, run], key=lambda run: run["seed"])
        self.values.setdefault(task, {})[row] = runs

    def write(self, order: list[str], settings: dict[str, list[str]]) -> None:
        """Write the JSON file and the tables, each atomically."""
        replace_file(self.path, json.dumps(self.values, indent=1, ensure_ascii=False) + "\n")
        replace_file(self.path.with_suffix(".md"), self.markdown(order, settings))

    def markdown(self, order: list[str], settings: dict[str, list[str]]) -> str:
        """All tables; a † marks rows measured with settings other than the current `settings`."""
        name = self.path.stem.removeprefix("accuracy-")
        parts = [HEAD.format(name=name), self._table("test", order, settings, TEST_COLUMNS)]
        if "†" in parts[-1]:
            parts.append(
                "\n† measured with other settings than the current ones, or by an earlier version.\n"
            )
        parts.append(self._chosen())
        if "fitb" in self.values:
            table = self._table("fitb", order, settings, self._questions())
            parts.append("\n## Fill in the blank\n\n" + table)
        parts += [self._differences(), self._leaks()]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"

    def line(self, task: str, row: str, settings: dict[str, list[str]]) -> str:
        """The table line of a row, to print while running."""
        return self._table(
            task, [row], settings, TEST_COLUMNS[:5] if task == "test" else self._questions()
        ).splitlines()[2]

    def stale(self, task: str, row: str, settings: dict[str, list[str]]) -> bool:
        """Whether a row was measured with other settings than the current ones."""
        here = settings.get(row)
        return any("seed" not in run or run.get("settings", here) != here for run in self.runs(task, row))

    def _questions(self) -> tuple[str, ...]:
        runs = [run for row in self.values["fitb"].values() for run in row if "failed" not in run]
        return tuple(dict.fromkeys(key for run in runs for key in run if key.startswith("fitb")))

    def _table(
        self, task: str, order: list[str], settings: dict[str, list[str]], shown: tuple[str, ...]
    ) -> str:
        lines = [f"| | {' | '.join(shown)} | seeds | seconds |", "|---" * (len(shown) + 3) + "|"]
        known = self.values.get(task, {})
        for row in [name for name in order if name in known] + [name for name in known if name not in order]:
            runs = known[row]
            if "failed" in runs[0]:
                lines.append(f"| {row} | not measured: {runs[0]['failed']} |" + " |" * (len(shown) + 1))
                continue
            old = self.stale(task, row, settings)
            cells = [_cell(key, [run[key] for run in runs if key in run]) for key in shown]
            seconds = [run["seconds"] for run in runs if "seconds" in run]
            cells += [str(len(runs)), f"{statistics.mean(seconds):.0f}" if seconds else ""]
            lines.append(f"| {row}{' †' if old else ''} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def _chosen(self) -> str:
        """The settings of the peers, chosen on a slice of the train split."""
        lines = []
        for row, runs in self.values.get("test", {}).items():
            if chosen := runs[0].get("chosen"):
                listed = ", ".join(f"{name} = {value}" for name, value in chosen.items())
                lines.append(f"- {row}: {listed}")
        return "\nChosen on a slice of the train split:\n\n" + "\n".join(lines) + "\n" if lines else ""

    def _differences(self) -> str:
        found = self.values.get("differences", {})
        if not found:
            return ""
        shown = list(next(iter(found.values())))
        lines = [
            "\n## Differences\n",
            "In points, with 95 % intervals of a paired bootstrap over the test points (10,000 samples).\n",
            f"| | {' | '.join(shown)} |",
            "|---" * (len(shown) + 1) + "|",
        ]
        for name, values in found.items():
            cells = [f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]" for mean, low, high in values.values()]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        return "\n".join(lines) + "\n"

    def _leaks(self) -> str:
        found = self.values.get("leaks")
        if not found:
            return ""
        return (
            "\n## The split\n\nLabels are items, so a test pair could leak into training in reverse. "
            f"Of {found['test pairs']:,} test pairs, {found['same in train']:,} occur in `train` and "
            f"{found['reversed in train']:,} occur there reversed. {found['in sets']:,} share a set; sets "
            "train only the fill-in-the-blank models, which are never evaluated on the test split. Of "
            f"{found['items of questions']:,} items of the questions, {found['of them in sets']:,} occur in "
            "a set.\n"
        )


def _cell(key: str, values: list[float]) -> str:
    if not values:
        return ""
    digits = 3 if key.startswith("ECE") else 1
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def replace_file(path: Path, text: str) -> None:
    """Write a file atomically; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
