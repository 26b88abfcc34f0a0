"""Measure speed and memory of importing Amazon metadata on one core.

    python benchmarks/imports.py [--lines 200000] [--memory 10000000]

Generates lines of about 1 KB (2014: Python literals), imports them in a separate process pinned to one core,
and prints lines per second, from the first byte read to the finished catalogue, and the peak resident memory.
In `-bad` files, one line in a thousand is truncated. With --memory, imports that many lines of 2018 instead.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = [
    "oak",
    "desk",
    "lamp",
    "chair",
    "red",
    "blue",
    "steel",
    "garden",
    "kids",
    "shoes",
    "for",
    "with",
    "set",
    "premium",
    "black",
    "large",
    "portable",
]
ALSO_BOUGHT, ALSO_VIEWED = 15, 6  # ids per product
KNOWN_IDS = 0.6  # fraction of these ids that are products in the file


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choices(WORDS, k=n))


def asin(number: int) -> str:
    return f"B{number:09d}"


def product(year: str, number: int, total: int, rng: random.Random) -> dict[str, object]:
    """One product; related ids are uniform, and some are not in the file."""
    others = [asin(rng.randrange(int(total / KNOWN_IDS))) for _ in range(ALSO_BOUGHT)]
    viewed = [asin(rng.randrange(int(total / KNOWN_IDS))) for _ in range(ALSO_VIEWED)]
    address = f"https://images.example.com/images/I/{asin(number)}"
    title, long = words(rng, 10), words(rng, 25)
    match year:
        case "2014":
            related = {"also_bought": others, "also_viewed": viewed, "bought_together": others[:2]}
            return {
                "asin": asin(number), "description": f"{long}; the kids' {words(rng, 22)}",
                "title": title, "price": 12.99,
                "imUrl": address + ".jpg", "related": related, "salesRank": {"Home": number},
                "brand": words(rng, 1), "categories": [["Home & Kitchen", "Office"]],
            }  # fmt: skip
        case "2018":
            return {
                "category": ["Home", "Kitchen"], "tech1": "", "description": [long], "fit": "",
                "title": title,
                "also_buy": others, "tech2": "", "brand": words(rng, 1), "feature": [words(rng, 6)],
                "rank": "1,234 in Home", "also_view": viewed, "main_cat": "Home", "price": "$12.99",
                "asin": asin(number), "imageURL": [f"{address}._SS40_.jpg"] * 2,
                "imageURLHighRes": [f"{address}-{i}.jpg" for i in range(2)],
            }  # fmt: skip
        case _:
            images = [
                {
                    "thumb": f"{address}-{i}-t.jpg",
                    "large": f"{address}-{i}.jpg",
                    "variant": "MAIN",
                    "hi_res": None,
                }
                for i in range(3)
            ]
            return {
                "main_category": "Home", "title": title, "average_rating": 4.8, "rating_number": 10,
                "features": [words(rng, 6)], "description": [words(rng, 12)], "price": None,
                "images": images,
                "videos": [], "store": "Oak & Co", "categories": ["Home"], "details": {"Colour": "red"},
                "parent_asin": asin(number), "bought_together": others,
            }  # fmt: skip


def make(path: Path, year: str, total: int, distinct: int, bad: int = 0) -> float:
    """Write a file and return its bytes per line; after `distinct` lines, they repeat with new asins.

    With `bad`, one in so many lines is truncated.
    """
    rng = random.Random(0)
    serialise = repr if year == "2014" else json.dumps
    pool = [serialise(product(year, number, total, rng)) for number in range(min(total, distinct))]
    if bad:
        pool[::bad] = [text[: len(text) // 2] for text in pool[::bad]]
    size = 0
    with gzip.open(path, "wt", compresslevel=1) if path.suffix == ".gz" else path.open("w") as file:
        for start in range(0, total, distinct):
            count = min(distinct, total - start)
            renamed = (text.replace(asin(i), asin(start + i)) for i, text in enumerate(pool[:count]))
            block = "\n".join(renamed) + "\n"
            size += len(block)
            file.write(block)
    return size / total


def literal_lines(count: int) -> None:
    """Compare our translation of Python literals with `ast.literal_eval`."""
    from mufin.data.importers import lines as literal

    rng = random.Random(0)
    lines = [repr(product("2014", number, count, rng)).encode() for number in range(count)]
    block = b"\n".join(lines)
    start = time.process_time()
    literal.to_json(block)
    ours = time.process_time() - start
    start = time.process_time()
    for line in lines:
        ast.literal_eval(line.decode())
    theirs = time.process_time() - start
    print(
        f"\nPython literals to JSON: ours {count / ours:,.0f}, ast.literal_eval {count / theirs:,.0f} lines/s"
    )


def import_apart(path: Path, curate: bool) -> dict[str, float]:
    """Import in a separate process on one core."""
    command = [sys.executable, __file__, "--import", str(path)] + (["--curate"] if curate else [])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def run(path: Path, curate: bool) -> None:
    """Import and print the measurements as JSON; runs in the separate process."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    from catalogue_memory import peak_mb
    from mufin.data.importers.amazon.curate import Curation
    from mufin.data.importers.amazon.importer import import_amazon

    before = peak_mb()
    with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
        start, cpu = time.perf_counter(), time.process_time()
        done = import_amazon([path], Path(temporary) / "shop", Curation() if curate else None)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(
        json.dumps(
            {"seconds": seconds, "cpu": cpu, "peak": peak_mb(), "before": before, **vars(done.statistics)}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--memory", type=int, default=0, help="import this many lines of 2018 instead")
    parser.add_argument("--folder", type=Path, help="parent of the temporary folder")
    parser.add_argument(
        "--only", default="", help="only files whose name contains this, such as 2018.json.gz"
    )
    parser.add_argument("--import", dest="source", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--curate", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.source:
        run(args.source, args.curate)
        return
    print("| file | lines | bytes/line | curated | lines/s | lines/s of CPU time | peak MB |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=args.folder) as temporary:
        cases = [(year, suffix, 0) for year in ("2014", "2018", "2023") for suffix in ("", ".gz")]
        cases += [("2018", "-bad.gz", 1000)]
        if args.memory:
            cases = [("2018", ".gz", 0)]
        for year, suffix, bad in cases:
            total = args.memory or args.lines
            path = Path(temporary) / f"meta-{year}.json{suffix}"
            if args.only not in path.name:
                continue
            width = make(path, year, total, 100_000, bad)
            for curate in (False, True) if suffix == "" else (True,):
                got = import_apart(path, curate)
                speed, pure = total / got["seconds"], total / got["cpu"]
                print(
                    f"| {path.name} | {total:,} | {width:.0f} | {'yes' if curate else 'no'} | {speed:,.0f} "
                    f"| {pure:,.0f} | {got['peak']:.0f} |",
                    flush=True,
                )
            path.unlink()
    if not args.memory and args.only in "2014":
        literal_lines(min(args.lines, 20_000))


if __name__ == "__main__":
    main()
