"""How accurate each variant is on a catalogue, beside two plain baselines.

    python benchmarks/accuracy.py DATA [ROW …] [--seeds 3] [--device auto] [--slice]

Writes accuracy-<name of DATA>.md and .json into benchmarks/results (or --results); rows measured before are
kept. With --slice, 15 % of the train split, whole titles at a time, stand in for the test split: settings are
chosen there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from mufin import Catalogue, Config, fit, metrics
from mufin.evaluate import evaluate
from mufin.evaluate.baselines import popularity, tfidf_neighbours
from mufin.progress import Progress

SHOWN = ("P@1", "P@5", "nDCG@5", "R@10", "R@100", "PSP@5")
ONLY_MODULE_I = ["pretrain.epochs=30", "finetune.epochs=0", "rank.beta=0", "memory.neighbours=0"]
VARIANTS = {
    "default": [],
    "text only": ["modalities=text"],
    "image only": ["modalities=image"],
    "Module I only, bag index": [*ONLY_MODULE_I, 'retrieve.entries=["bag"]'],
    "Module I only, vector index": [*ONLY_MODULE_I, 'retrieve.entries=["vector"]'],
    "no memory": ["memory.neighbours=0"],
    "no memory, β = 0.7": ["memory.neighbours=0", "rank.beta=0.7"],
    "with cross-attention": ["rank.cross=attention"],
    "no A_S": ["embed.attention=feedforward"],
    "α = 1": ["rank.alpha=one"],
}
BASELINES = ("popularity", "TF-IDF neighbours")
RESULTS = Path(__file__).parent / "results"


def baseline(name: str, catalogue: Catalogue) -> dict[str, float]:
    train, test = catalogue.split("train"), catalogue.split("test")
    if name == "popularity":
        rows = popularity(train.relevance, len(test), 100, test.exclude)
    else:
        texts = [
            [" ".join(catalogue.items[int(row)].texts) for row in split.members] for split in (train, test)
        ]
        rows = tfidf_neighbours(texts[0], train.relevance, texts[1], 100, exclude=test.exclude)
    return metrics.evaluate(rows, test.relevance, metrics.propensities(train.relevance))


def measure(name: str, catalogue: Catalogue, seed: int, device: str) -> dict[str, float]:
    if name in BASELINES:
        return baseline(name, catalogue)
    settings = [*VARIANTS[name], f"seed={seed}", f"run.device={device}"]
    started = time.perf_counter()
    model = fit(catalogue, Config.preset("default").override(settings))
    seconds = time.perf_counter() - started
    return evaluate(model, catalogue, progress=Progress()) | {"seconds": seconds}


def table(results: dict[str, list[dict[str, float]]]) -> str:
    """One line a row: mean ± deviation over the seeds."""
    lines = ["| | " + " | ".join(SHOWN) + " | training, s |", "|---" * (len(SHOWN) + 2) + "|"]
    for name in (*BASELINES, *VARIANTS):
        if runs := results.get(name):
            cells = [_cell([run[key] for run in runs]) for key in SHOWN]
            seconds = [run["seconds"] for run in runs if "seconds" in run]
            cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "")
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def sliced(catalogue: Catalogue) -> Catalogue:
    """The train split cut in two by title; nothing of the test split is left."""
    train = catalogue.split("train")
    titles = [" ".join(catalogue.items[int(row)].texts[:1]).lower() for row in train.members]
    group = np.unique(titles, return_inverse=True)[1]
    away = (np.random.default_rng(99).random(group.max() + 1) < 0.15)[group]

    def pairs(points: np.ndarray) -> list[tuple[str, list[str]]]:
        part = train.take(points)
        labels = catalogue.labels.ids.to_pylist()
        rows = np.split(part.relevance.indices, part.relevance.indptr[1:-1])
        return [
            (catalogue.items[int(i)].id, [labels[l] for l in row])
            for i, row in zip(part.members, rows, strict=True)
        ]

    own = None if catalogue.labels is catalogue.items else catalogue.labels
    splits = {"train": pairs(np.flatnonzero(~away)), "test": pairs(np.flatnonzero(away))}
    return Catalogue.build(catalogue.items, own, **splits)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", nargs="*", default=[*BASELINES, *VARIANTS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--slice", action="store_true")
    arguments = parser.parse_args()
    catalogue = Catalogue.read(arguments.data)
    name = arguments.data.resolve().name
    if arguments.slice:
        catalogue, name = sliced(catalogue), f"{name}-slice"
    path = arguments.results / f"accuracy-{name}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for row in arguments.rows:
        seeds = 1 if row in BASELINES else arguments.seeds
        results[row] = [measure(row, catalogue, seed, arguments.device) for seed in range(seeds)]
        path.write_text(json.dumps(results, indent=1))
        path.with_suffix(".md").write_text(
            f"# Accuracy on {name}\n\nMade by `benchmarks/accuracy.py`; percent.\n\n{table(results)}\n"
        )
        print(table({row: results[row]}).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
