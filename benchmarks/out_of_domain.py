"""How probable the first hit is for queries unlike the training data, before and after `seen` enters.

    python benchmarks/out_of_domain.py DATA=OTHER … [--preset fast] [--keep FOLDER] [--device cpu] [--slice]

Trains a model on DATA, a catalogue or "shop" (`small_shop.py`), and asks it for strange queries: made-up
words, other languages, noise, and the test items of OTHER, a catalogue of another domain. "Before" is the
same model with a calibration that was fitted to held-out points alone. Writes out-of-domain.md into
benchmarks/results (or --results); DATA that are there already and not named stay. --keep keeps trained models
and uses those that are there. --slice measures on a slice of the train split, where settings are chosen.
"""

from __future__ import annotations

import argparse
import json
import string
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import mufin.train.assemble as assembling
from measure import Kept
from mufin import Catalogue, Config, Item, Mufin, fit, load
from mufin.data.convert import as_items
from mufin.evaluate import metrics
from mufin.evaluate.score import predict
from mufin.model.store import save
from mufin.signals.base import marked
from mufin.signals.calibration import START, Calibration
from mufin.signals.mixture import Mixture
from mufin.train.data import TrainingData
from slices import sliced
from small_shop import small_shop
from tables import replace_file

RESULTS = Path(__file__).parent / "results" / "out-of-domain.json"
QUERIES = 200  # of each kind
SIDE = 96  # pixels of an image
KEYBOARD = ["qwertzuiop", "asdfghjkl", "yxcvbnm", "qwertyuiop", "zxcvbnm"]
BINS = (0.0, 0.15, 0.3, 0.5, 0.7, 1.01)  # of the table of reliability
SENTENCES = [  # of everyday life, in other languages
    "Wie komme ich zum Bahnhof?", "Das Wetter wird morgen regnerisch", "Où est la bibliothèque municipale",
    "Je voudrais réserver une table", "¿Dónde está el hospital más cercano?", "mañana por la mañana llueve",
    "Dov'è la stazione dei treni", "vorrei un biglietto di andata", "Gdzie jest najbliższa apteka",
    "jutro będzie padał deszcz", "今日はいい天気ですね", "駅はどこですか", "Где находится больница",
    "завтра будет дождь", "bugün hava çok güzel", "en yakın hastane nerede", "hvor er nærmeste sykehus",
    "i morgen regner det", "Kde je nejbližší nemocnice", "오늘 날씨가 좋네요",
    "今天天气很好", "最近的医院在哪里", "अस्पताल कहाँ है", "hol van a legközelebbi kórház",
]  # fmt: skip


def gibberish(random: np.random.Generator) -> str:
    """Pieces of keyboard rows and random letters."""

    def word() -> str:
        if random.random() < 0.4:
            start = int(random.integers(0, 4))
            return str(random.choice(KEYBOARD))[start : start + int(random.integers(3, 8))]
        return "".join(random.choice(list(string.ascii_lowercase), random.integers(3, 11)))

    return " ".join(word() for _ in range(random.integers(1, 4)))


def noise(random: np.random.Generator) -> Image.Image:
    """Coarse or fine noise."""
    side = int(random.choice([4, 12, 32, SIDE]))
    how = Image.Resampling.NEAREST if random.random() < 0.5 else Image.Resampling.BILINEAR
    pixels = random.integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((SIDE, SIDE), how)


def strange_queries(other: Catalogue) -> dict[str, list[Item]]:
    """Queries by kind; those of `other` are items of its test split."""
    random = np.random.default_rng(5)
    chosen = random.choice(other.split("test").members, QUERIES, replace=False)
    elsewhere = [other.items[int(row)] for row in np.sort(chosen)]

    def many(make: Callable[[], Item]) -> list[Item]:
        return [make() for _ in range(QUERIES)]

    def plain() -> Item:
        return Item(images=[Image.new("RGB", (SIDE, SIDE), tuple(random.integers(0, 256, 3).tolist()))])

    return {
        "random strings": many(lambda: Item(texts=[gibberish(random)])),
        "random strings in capitals": many(lambda: Item(texts=[gibberish(random).upper()])),
        "other languages": [Item(texts=[sentence]) for sentence in SENTENCES],
        "another domain, titles": [Item(texts=item.texts[:1]) for item in elsewhere],
        "another domain, images": [Item(images=item.images[:1]) for item in elsewhere],
        "another domain, items": [Item(texts=item.texts, images=item.images) for item in elsewhere],
        "noise images": many(lambda: Item(images=[noise(random)])),
        "images of one colour": many(plain),
        "random strings with noise images": many(
            lambda: Item(texts=[gibberish(random)], images=[noise(random)])
        ),
    }


def trained(catalogue: Catalogue, config: Config, folder: Path | None) -> tuple[Mufin, Mufin]:
    """The model, and the same one calibrated on held-out points alone; kept in the folder, if any."""
    if folder is not None and (folder / "before.json").exists():
        model = load(folder, config.run.device, exact=True)
        return model, with_calibration(model, json.loads((folder / "before.json").read_text()))
    found: list[Calibration] = []
    learn = assembling.learn_mixture

    def observed(draft: Mufin, held: TrainingData, known: Catalogue) -> Mixture:
        mixture = learn(draft, held, known)
        labels, evidence = draft.candidates(draft.query(held.points, held.groups), held.exclude)
        plain = Calibration.unfitted(mixture.terms.clues, START)
        relevant = marked(labels, held.relevance)
        found.append(plain.with_hits(mixture.score(evidence), relevant, evidence.familiarity))
        return mixture

    assembling.learn_mixture = observed
    try:
        model = fit(catalogue, config)
    finally:
        assembling.learn_mixture = learn
    if folder is not None:
        save(model, folder)
        (folder / "before.json").write_text(json.dumps(found[0].stored()))
    return model, with_calibration(model, found[0].stored())


def with_calibration(model: Mufin, stored: dict[str, object]) -> Mufin:
    """A copy with another calibration."""
    changed = copy(model)
    calibration = Calibration.of(model.mixture.terms.clues, stored)
    changed.mixture = replace(model.mixture, calibration=calibration)
    return changed


def first_probabilities(model: Mufin, items: list[Item]) -> list[float]:
    """That of the first hit of each item that the model can read."""
    features = model.features(as_items(items)[0])
    found = model.rank(model.query(features), 1).probability[:, 0].tolist()
    return [p for p, size in zip(found, features.sizes, strict=True) if size]


def in_domain(model: Mufin, catalogue: Catalogue) -> dict[str, float]:
    """P@k and calibration error on the test split."""
    train, test = catalogue.split("train"), catalogue.split("test")
    predictions = predict(model, catalogue, test)
    kept = Kept.of(predictions.labels, test.relevance, train.relevance, predictions.probability)
    figures = metrics.evaluate(predictions.labels, test.relevance, metrics.propensities(train.relevance))
    mean = float(predictions.probability[:, 0].mean())
    return {"P@1": figures["P@1"], "P@5": figures["P@5"], "first": mean} | kept.figures()


def measure(catalogue: Catalogue, other: Catalogue, config: Config, folder: Path | None) -> dict[str, object]:
    """All figures of a catalogue, before and after."""
    after, before = trained(catalogue, config, folder)
    queries = strange_queries(other)
    models = (before, after)
    asked = {kind: [first_probabilities(m, items) for m in models] for kind, items in queries.items()}
    kinds = {kind: [float(np.mean(p)) for p in both] for kind, both in asked.items() if both[0]}
    pooled = [np.concatenate([both[i] for both in asked.values()]) for i in (0, 1)]
    counts = [np.histogram(p, BINS)[0].tolist() for p in pooled]
    return {"in domain": [in_domain(m, catalogue) for m in models], "kinds": kinds, "counts": counts}


def page(results: dict[str, dict]) -> str:
    """All results as Markdown."""
    lines = [
        "# Queries unlike the training data", "",
        "By `benchmarks/out_of_domain.py`: the mean probability of the first hit. All hits of these queries "
        "are taken to be wrong: the lower the better. *After* has the probability that a query is like the "
        "training data in `hit.probability`, *before* has not. Mean probability, P@k and calibration error "
        "(ECE) are of the test split.",
    ]  # fmt: skip
    for name, found in results.items():
        before, after = found["in domain"]
        lines += ["", f"## {name}", "", "| queries | before | after |", "|---|---|---|"]
        lines += [f"| {kind} | {a:.3f} | {b:.3f} |" for kind, (a, b) in found["kinds"].items()]
        lines += [f"| test split | {before['first']:.3f} | {after['first']:.3f} |"]
        lines += [
            f"| … {key} | {before[key]:.3f} | {after[key]:.3f} |" for key in ("ECE top 1", "ECE top 10")
        ]
        lines += [f"| … {key} | {before[key]:.2f} | {after[key]:.2f} |" for key in ("P@1", "P@5")]
        lines += ["", "| probability of the first hit, strange queries | before | after |", "|---|---|---|"]
        rows = zip(BINS, BINS[1:], *found["counts"], strict=False)
        lines += [f"| {low:.2f} to {min(high, 1):.2f} | {a:,} | {b:,} |" for low, high, a, b in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", nargs="+", metavar="DATA=OTHER")
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--slice", action="store_true")
    arguments = parser.parse_args()
    config = Config.preset(arguments.preset).override([*arguments.set, f"run.device={arguments.device}"])
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    for pair in arguments.data:
        data, other = pair.split("=")
        catalogue = small_shop() if data == "shop" else Catalogue.read(data)
        if arguments.slice:
            catalogue = sliced(catalogue)
        name = f"{Path(data).name}, {arguments.preset}{', slice' * arguments.slice}"
        folder = arguments.keep / name.replace(", ", "-") if arguments.keep else None
        results[name] = measure(catalogue, Catalogue.read(other), config, folder)
        replace_file(arguments.results, json.dumps(results, indent=1))
        replace_file(arguments.results.with_suffix(".md"), page(results))
        print(page({name: results[name]}), flush=True)


if __name__ == "__main__":
    main()
