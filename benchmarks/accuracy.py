"""How accurate each variant is on a catalogue, beside two plain baselines.

    python benchmarks/accuracy.py DATA [ROW …] [--seeds 3] [--device auto] [--results FOLDER]

Writes accuracy-<name of DATA>.md and .json into benchmarks/results; rows measured before are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", nargs="*", default=[*BASELINES, *VARIANTS])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    catalogue = Catalogue.read(arguments.data)
    path = arguments.results / f"accuracy-{arguments.data.resolve().name}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in arguments.rows:
        seeds = 1 if name in BASELINES else arguments.seeds
        results[name] = [measure(name, catalogue, seed, arguments.device) for seed in range(seeds)]
        path.write_text(json.dumps(results, indent=1))
        path.with_suffix(".md").write_text(
            f"# Accuracy on {arguments.data.resolve().name}\n\n"
            f"Made by `benchmarks/accuracy.py`; test split, percent.\n\n{table(results)}\n"
        )
        print(table({name: results[name]}).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
