"""Build two catalogues of 370,000 icons from an npm package: images to words, and words to words.

    npm pack @iconify/json@2.2.535 && tar xzf iconify-json-2.2.535.tgz
    python benchmarks/make_icons.py package OUT              # --jobs 16, --most 5000 for a small one

OUT/icons-drawn: an image alone → all words of the icon's name. OUT/icons-named: an image and a random half of
the words → the other half; icons of one word are left out. Words of style and size (outline, duotone, 24 …)
are no labels; the list is printed. Whole families of collections are in one split, so that test icons are of
unseen styles. Test icons that look almost like a training icon are left out. Labels occur at least twice in
training. Prints the size of both, what was left out, and what chance and popularity reach.

The sources of icon-search are among these icons: never evaluate there what was trained here.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import resvg_py
from PIL import Image
from scipy.fft import dctn

from mufin import Catalogue
from mufin.evaluate import metrics
from mufin.evaluate.baselines import popularity
from mufin.progress import Progress

SIDE = 64  # pixels
TEST_SHARE = 0.15  # of all icons
LARGEST_TEST_FAMILY = 0.05  # of all icons; larger families are always in training
STYLE_SHARE = 0.05  # a word in this share of a collection's icons may be one of its styles
STYLE_CONCENTRATION = 0.6  # and is one if this share of its icons is in such collections
SPREAD = 0.3  # unless more than this share of all families knows the word
SAME_DRAWING = 4  # bits of 64 in which the hashes of nearly the same drawing differ
MIN_FREQUENCY = 2  # training icons of a label
SIZE = re.compile(r"\d+(px|x|d|k)?|x?\d+|[a-z]")
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
    'width="{side}" height="{side}" viewBox="{left} {top} {width} {height}">{body}</svg>'
)


@dataclass(frozen=True)
class Icon:
    """An icon before and after it is drawn."""

    id: str  # collection:name
    family: str
    words: tuple[str, ...]
    svg: str


@dataclass(frozen=True)
class Drawing:
    """An image, and a hash of what it looks like."""

    image: bytes  # WebP
    hash: bytes  # 64 bits


# -- from the package to icons -------------------------------------------------------------------------------


def families(collections: dict[str, Any]) -> dict[str, str]:
    """Collection → family: those of one author, one stem of the name, or of Material Design."""
    parent = {prefix: prefix for prefix in collections}

    def root(prefix: str) -> str:
        while parent[prefix] != prefix:
            prefix = parent[prefix]
        return prefix

    members: dict[str, list[str]] = defaultdict(list)
    for prefix, info in collections.items():
        members[f"author {info['author']['name']}"].append(prefix)
        members[f"stem {re.sub(r'[0-9]+$', '', prefix.split('-')[0])}"].append(prefix)
        if info.get("category") == "Material":
            members["Material"].append(prefix)
    for same in members.values():
        for prefix in same[1:]:
            parent[root(prefix)] = root(same[0])
    return {prefix: root(prefix) for prefix in collections}


def read_icons(package: Path) -> list[Icon]:
    """Read all visible icons of collections that state a licence."""
    collections = json.loads((package / "collections.json").read_text("utf-8"))
    family = families(collections)
    found = []
    for prefix in sorted(collections):
        data = json.loads((package / "json" / f"{prefix}.json").read_text("utf-8"))
        for name, icon in sorted(data["icons"].items()):
            if icon.get("hidden"):
                continue
            box = {key: icon.get(key, data.get(key, default)) for key, default in BOX.items()}
            svg = SVG.format(side=SIDE, body=icon["body"], **box)
            found.append(Icon(f"{prefix}:{name}", family[prefix], words_of(name), svg))
    return found


BOX = {"left": 0, "top": 0, "width": 16, "height": 16}


def words_of(name: str) -> tuple[str, ...]:
    """Return the distinct words of an icon's name, without sizes and single letters.

    >>> words_of("arrow-left-24-arrow-2x")
    ('arrow', 'left')
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    return tuple(dict.fromkeys(word for word in words if word and not SIZE.fullmatch(word)))


def style_words(icons: Sequence[Icon]) -> list[str]:
    """Return the words that tell how an icon is drawn: frequent in a few collections, rare elsewhere."""
    of_collection: dict[str, Counter[str]] = defaultdict(Counter)
    sizes, known = Counter[str](), defaultdict[str, set[str]](set)
    for icon in icons:
        prefix = icon.id.split(":")[0]
        sizes[prefix] += 1
        of_collection[prefix].update(icon.words)
        for word in icon.words:
            known[word].add(icon.family)
    total, frequent = Counter[str](), Counter[str]()
    for prefix, words in of_collection.items():
        total += words
        frequent.update({w: n for w, n in words.items() if n >= STYLE_SHARE * sizes[prefix] > 1})
    n_families = len({icon.family for icon in icons})
    return sorted(
        word
        for word, n in frequent.items()
        if n >= STYLE_CONCENTRATION * total[word] and len(known[word]) <= SPREAD * n_families
    )


# -- drawing -------------------------------------------------------------------------------------------------


def draw(svg: str) -> Drawing | None:
    """Draw black on white; None if the SVG cannot be drawn or is blank."""
    try:
        png = resvg_py.svg_to_bytes(
            svg_string=svg, width=SIDE, height=SIDE, background="white", skip_system_fonts=True
        )
    except Exception:  # whatever the renderer raises
        return None
    image = Image.open(io.BytesIO(bytes(png))).convert("RGB")
    grey = np.asarray(image.convert("L").resize((32, 32)), np.float32)
    if grey.std() < 1:
        return None
    low = dctn(grey, norm="ortho")[:8, :8]
    bits = low > np.median(low)
    stream = io.BytesIO()
    image.save(stream, "WEBP", quality=80)
    return Drawing(stream.getvalue(), np.packbits(bits).tobytes())


def drawings(icons: Sequence[Icon], jobs: int) -> Iterator[tuple[Icon, Drawing]]:
    with Pool(jobs) as pool, Progress().task("Drawing", len(icons)) as task:
        for icon, drawing in zip(icons, pool.imap(draw, (i.svg for i in icons), 256), strict=True):
            task.advance()
            if drawing is not None:
                yield icon, drawing


def nearest_distance(hashes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return the number of differing bits of each hash (n, 8) to the nearest of others (m, 8)."""
    index = faiss.IndexBinaryFlat(64)
    index.add(among)
    return index.search(hashes, 1)[0][:, 0]


# -- splits --------------------------------------------------------------------------------------------------


def test_families(icons: Sequence[Icon], seed: int) -> set[str]:
    """Choose random families, not the largest, until they have a share of the icons."""
    sizes = Counter(icon.family for icon in icons)
    order = sorted(family for family, n in sizes.items() if n <= LARGEST_TEST_FAMILY * len(icons))
    random.Random(seed).shuffle(order)
    chosen: set[str] = set()
    for family in order:
        if sum(sizes[name] for name in chosen) >= TEST_SHARE * len(icons):
            break
        chosen.add(family)
    return chosen


def halves(words: Sequence[str], seed: str) -> tuple[list[str], list[str]]:
    """Split words at random into a text and labels; the text has the smaller half."""
    shuffled = random.Random(seed).sample(list(words), len(words))
    return shuffled[: len(words) // 2], shuffled[len(words) // 2 :]


def write(folder: Path, rows: Sequence[tuple[Icon, Drawing, list[str], list[str]]], tested: set[str]) -> None:
    """Write a catalogue of rows (icon, drawing, words of its text, labels)."""
    folder.mkdir(parents=True)
    frequency = Counter(w for icon, _, _, labels in rows if icon.family not in tested for w in labels)
    known = sorted(word for word, n in frequency.items() if n >= MIN_FREQUENCY)
    pq.write_table(pa.table({"id": known, "texts": [[word] for word in known]}), folder / "labels.parquet")
    listed: dict[str, dict[str, list[Any]]] = {split: {"id": [], "labels": []} for split in ("train", "test")}
    kept = []
    for row in rows:
        labels = [word for word in row[3] if frequency[word] >= MIN_FREQUENCY]
        if labels:
            split = listed["test" if row[0].family in tested else "train"]
            split["id"].append(row[0].id)
            split["labels"].append(labels)
            kept.append(row)
    for name, lists in listed.items():
        pq.write_table(pa.table(lists), folder / f"{name}.parquet")
    texts = [[" ".join(text)] if text else [] for _, _, text, _ in kept]
    columns = {
        "id": [icon.id for icon, *_ in kept],
        "texts": pa.array(texts, pa.list_(pa.string())),
        "images": [[drawing.image] for _, drawing, *_ in kept],
        "family": [icon.family for icon, *_ in kept],
    }
    pq.write_table(pa.table(columns), folder / "items.parquet", compression="zstd", row_group_size=20_000)


def describe(folder: Path) -> None:
    """Print the size of a catalogue, and what chance and popularity reach."""
    catalogue = Catalogue.read(folder)
    train, test = catalogue.split("train"), catalogue.split("test")
    per_point = test.relevance.nnz / max(1, len(test))
    chance = 100 * per_point / len(catalogue.labels)
    print(
        f"{folder.name}: {len(train):,} training and {len(test):,} test points, "
        f"{len(catalogue.labels):,} labels, {train.relevance.nnz:,} training pairs, "
        f"{per_point:.2f} labels per test point; P@1 of chance {chance:.3f} %"
    )
    found = metrics.evaluate(
        popularity(train.relevance, len(test), 100), test.relevance, metrics.propensities(train.relevance)
    )
    print("  popularity: " + ", ".join(f"{name} {found[name]:.1f}" for name in ("P@1", "P@5", "R@10")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, help="the unpacked npm package")
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--most", type=int, help="use so many random icons only")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    icons = read_icons(arguments.package)
    styles = style_words(icons)
    print(f"{len(icons):,} icons of {len({i.family for i in icons})} families")
    print(f"{len(styles)} words of style, which are no labels: {', '.join(styles)}")
    if arguments.most:
        icons = sorted(random.Random(0).sample(icons, arguments.most), key=lambda icon: icon.id)
    drawn = list(drawings(icons, arguments.jobs))
    tested = test_families(icons, arguments.seed)
    hashes = np.stack([np.frombuffer(drawing.hash, np.uint8) for _, drawing in drawn])
    of_test = np.array([icon.family in tested for icon, _ in drawn])
    distance = nearest_distance(hashes[of_test], hashes[~of_test])
    same = set(np.flatnonzero(of_test)[distance <= SAME_DRAWING].tolist())
    print(f"{len(icons) - len(drawn):,} icons cannot be drawn; families of the test split: {sorted(tested)}")
    print(
        f"Of {int(of_test.sum()):,} test icons, {len(same):,} differ in at most {SAME_DRAWING} of 64 bits "
        "from a training icon and are left out; by bits: "
        + ", ".join(f"{bits}: {n:,}" for bits, n in enumerate(np.bincount(distance)[:13].tolist()))
    )
    styled = set(styles)
    rows = [
        (icon, drawing, [word for word in icon.words if word not in styled])
        for number, (icon, drawing) in enumerate(drawn)
        if number not in same
    ]
    del drawn
    write(arguments.out / "icons-drawn", [(i, d, [], words) for i, d, words in rows if words], tested)
    named = [(i, d, *halves(words, i.id)) for i, d, words in rows if len(words) > 1]
    write(arguments.out / "icons-named", named, tested)
    for name in ("icons-drawn", "icons-named"):
        describe(arguments.out / name)


if __name__ == "__main__":
    main()
