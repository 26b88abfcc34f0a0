"""Choose the settings of a peer on a slice of the train split."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from mufin import Catalogue
from mufin.evaluate import metrics
from peers import PEERS, rank
from slices import sliced
from tables import replace_file

TUNED_METRICS = ("P@1", "P@5", "R@10")


def tuned(name: str, catalogue: Catalogue, keep: Path) -> dict[str, Any]:
    """The settings with the highest mean of P@1, P@5 and R@10 on the slice.

    Scores are stored in `keep`, so that an interrupted search resumes.
    """
    name = PEERS[name].like or name
    grid = PEERS[name].grid
    if len(grid) == 1:
        return grid[0]
    path = keep / "tuned" / f"{name}.json"
    scores: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    slice = None
    for settings in grid:
        key = json.dumps(settings)
        if key not in scores:
            slice = slice or sliced(catalogue)
            found = metrics.evaluate(rank(name, slice, 0, settings), slice.split("test").relevance)
            scores[key] = mean(found[figure] for figure in TUNED_METRICS)
            replace_file(path, json.dumps(scores, indent=1))
            print(f"{name}, on the slice: {key} {scores[key]:.2f}", flush=True)
    return max(grid, key=lambda settings: scores[json.dumps(settings)])
