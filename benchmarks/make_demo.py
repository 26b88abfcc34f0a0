"""Build the embedded catalogue from the icon-search data.

    python benchmarks/make_demo.py SRC src/mufin/demo

Selects icons and clip art whose licences allow redistribution. The selection is deterministic: items are
sorted by a hash of their id. Items keep their split; a label is kept if it has at least two training points
here, a point if it has a label.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections import Counter
from pathlib import Path

import pyarrow as pa

from mufin.data.catalogue import Catalogue
from mufin.data.check_report import SplitCounts
from mufin.data.formats import parquet
from mufin.data.images import load_pixels
from mufin.data.items import Items

# Items per source. Excluded: emoji (mixed licences) and Font Awesome (requires attribution).
ITEMS_PER_SOURCE = {
    "openclipart": 2900,
    "tabler": 1300,
    "lucide": 900,
    "phosphor": 500,
    "carbon": 500,
    "mdi": 500,
}
EXCLUDED_FOLDERS = (  # of openclipart: uninformative or possibly offensive images
    *("signs_and_symbols/flags", "special/gradients", "logos", "tools/weapons", "tools/gallows"),
    *("recreation/religion", "people/bodypart", "people/sexy", "people/silhouette", "plants/cannabis"),
)
CONTACT = re.compile(r"@|https?:|www\.|e-?mail", re.IGNORECASE)  # texts with contact details are dropped
NOISE = re.compile(r"hash0x|^https?$")  # tagging errors
MAX_BYTES = 9_000_000
MIN_TRAINING_POINTS = 2
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "texts": pa.list_(pa.string()),
        "images": pa.list_(pa.binary()),
        "source": pa.string(),
        "category": pa.string(),
    }
)

Pairs = dict[str, list[str]]


def choose(items: Items) -> pa.Table:
    """The items of the demo with their images, without duplicate images."""
    rows = sorted(range(len(items)), key=lambda row: hashlib.sha256(items.ids[row].as_py().encode()).digest())
    left, chosen = dict(ITEMS_PER_SOURCE), []
    seen: set[object] = set()
    sources = items.table.column("source").to_pylist()
    for row in rows:
        source, item = sources[row], items[row]
        texts = [text for text in item.texts if not CONTACT.search(text)]
        path = item.id.partition(":")[2]
        if (
            not left.get(source)
            or not texts
            or path.startswith(EXCLUDED_FOLDERS)
            or seen.intersection(item.images)
        ):
            continue
        if any(load_pixels(image, 64).std() < 1 for image in item.images):
            continue  # white on white
        left[source] -= 1
        seen.update(item.images)
        chosen.append({"id": item.id, "texts": texts, "images": list(item.images), "source": source})
    return pa.Table.from_pylist([row | {"category": row["source"]} for row in chosen], SCHEMA)


def pairs_of(catalogue: Catalogue, split: str, ids: set[str]) -> Pairs:
    """Map item ids to label ids of a split, for the given items."""
    table = catalogue.parts[split].table()
    rows = zip(table.column("id").to_pylist(), table.column("labels").to_pylist(), strict=True)
    return {item: labels for item, labels in rows if item in ids}


def restrict(train: Pairs, test: Pairs, noise: set[str]) -> tuple[Pairs, Pairs, set[str]]:
    """Keep labels with enough training points, and points that still have a label."""
    counts = Counter(label for labels in train.values() for label in labels if label not in noise)
    kept = {label for label, count in counts.items() if count >= MIN_TRAINING_POINTS}

    def over(pairs: Pairs) -> Pairs:
        fewer = {item: [label for label in labels if label in kept] for item, labels in pairs.items()}
        return {item: labels for item, labels in fewer.items() if labels}

    return over(train), over(test), kept


def build(source: Path) -> dict[str, pa.Table]:
    """The four tables of the demo, sorted by id."""
    catalogue = Catalogue.read(source)
    table = choose(catalogue.items)
    ids = set(table.column("id").to_pylist())
    noise = {label.id for label in catalogue.labels if NOISE.search(label.texts[0])}
    train, test, kept = restrict(pairs_of(catalogue, "train", ids), pairs_of(catalogue, "test", ids), noise)
    labels = catalogue.labels.table
    tables = {
        "items": table.filter(pa.array([i in train or i in test for i in table.column("id").to_pylist()])),
        "labels": labels.filter(pa.array([label in kept for label in labels.column("id").to_pylist()])),
    }
    for name, pairs in (("train", train), ("test", test)):
        columns = {"id": list(pairs), "labels": pa.array(list(pairs.values()), pa.list_(pa.string()))}
        tables[name] = pa.table(columns)
    return {name: table.sort_by("id") if name != "labels" else table for name, table in tables.items()}


def main() -> None:
    """Write the files and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    args.target.mkdir(parents=True, exist_ok=True)
    tables = build(args.source)
    for name, table in tables.items():
        parquet.write([table], args.target / f"{name}.parquet", rows_per_group=2048)
    show(args.target, tables)


def show(target: Path, tables: dict[str, pa.Table]) -> None:
    """Print the counts of the demo; fail if it is too large to embed."""
    size = sum((target / f"{name}.parquet").stat().st_size for name in tables)
    sources = Counter(tables["items"].column("source").to_pylist())
    images = sum(len(row) for row in tables["items"].column("images").to_pylist())
    print(f"{tables['items'].num_rows:,} items, {images:,} images, {tables['labels'].num_rows:,} labels")
    for name in ("train", "test"):
        pairs = sum(len(labels) for labels in tables[name].column("labels").to_pylist())
        counts = SplitCounts(tables[name].num_rows, pairs)
        print(f"{name}: {counts.points:,} points, {counts.labels_per_point:.2f} labels per point")
    print(", ".join(f"{name} {count:,}" for name, count in sources.most_common()))
    print(f"{size / 1e6:.2f} MB, limit {MAX_BYTES / 1e6:.0f}")
    if size > MAX_BYTES:
        raise SystemExit("too large: lower ITEMS_PER_SOURCE")


if __name__ == "__main__":
    main()
