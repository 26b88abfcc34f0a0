"""Tables and a plot of what `speed.py` measured, from its JSON files alone.

python benchmarks/speed_tables.py [FOLDER]      # of every speed-*.json there an .md, of all one speed.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
WIDE = 8  # columns of a single row


def table(rows: list[Row]) -> str:
    """A Markdown table; columns in the order in which they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len(rows) == 1 and len(columns) > WIDE:  # on its side
        return table([{"what": key, "value": value} for key, value in rows[0].items()])
    lines = [columns, ["---"] * len(columns)]
    lines += [[shown(row.get(column)) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool() | str():
            return str(value)
        case float():
            return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case int():
            return f"{value:,}"
        case _:
            return json.dumps(value)


def page(results: dict[str, Any]) -> str:
    """All sections as Markdown."""
    machine = results["machine"]
    parts = [
        f"# Speed on {machine['device']}",
        ", ".join(f"{key} {value}" for key, value in machine.items()),
        "From the JSON file beside it, which `benchmarks/speed.py` wrote; medians. Table: `speed_tables.py`.",
    ]
    for name, found in results.items():
        if name in ("machine", "seconds"):
            continue
        rows = sorted(found, key=size) if isinstance(found, list) else [found]
        parts += [f"## {name.replace('_', ' ')}", table(rows)]
    return "\n\n".join(parts) + "\n"


def size(row: Row) -> float:
    """How many labels a row is about, as "303K" tells: sizes may have been measured in any order."""
    number, unit = str(row.get("size", "0K"))[:-1], str(row.get("size", "0K"))[-1]
    return float(number) * {"K": 1e3, "M": 1e6}[unit]


def rows_of(results: dict[str, Any], section: str) -> list[Row]:
    """The rows of a section that did not fail."""
    found = results.get(section) or []
    return [row for row in sorted(found, key=size) if "failed" not in row] if isinstance(found, list) else []


def curves(results: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """ms a query over labels: search for each batch, and from end to end where it was measured."""
    lines: dict[str, list[tuple[float, float]]] = {}
    searches, whole = rows_of(results, "search"), rows_of(results, "end_to_end")
    for row in searches:
        ms = row.get("search ms", row.get("us a query", 0.0) / 1e3)
        if ms:
            lines.setdefault(f"search, batch {row['batch']}", []).append((row["labels"], ms))
    for row in whole:
        if row["pictures"] == 1:
            lines.setdefault(f"all, batch {row['batch']}", []).append((row["labels"], row["all us"] / 1e3))
    for row in searches:
        if "search + rank ms" in row and row["batch"] == 1:
            lines.setdefault("search + rank, batch 1", []).append((row["labels"], row["search + rank ms"]))
    return {name: sorted(points) for name, points in lines.items()}


def plot(files: dict[str, dict[str, Any]], path: Path) -> None:
    """Cost against the number of labels, a panel a device that has any, both axes logarithmic."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    files = {name: results for name, results in files.items() if curves(results)}
    figure, panels = plt.subplots(1, len(files), figsize=(5.5 * len(files), 4), squeeze=False)
    for panel, results in zip(panels[0], files.values(), strict=True):
        for label, points in curves(results).items():
            panel.loglog(*zip(*points, strict=True), marker="o", label=label)
        panel.set(title=results["machine"]["device"], xlabel="labels", ylabel="ms a query")
        panel.grid(True, which="major", alpha=0.3)
        panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)


def main(folder: str = "benchmarks/results") -> None:
    files = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("speed-*.json"))}
    for name, results in files.items():
        (Path(folder) / f"{name}.md").write_text(page(results), "utf-8")
    if any(curves(results) for results in files.values()):
        plot(files, Path(folder) / "speed.svg")


if __name__ == "__main__":
    main(*sys.argv[1:2])
