"""Mutates every form of data file and reads it: a crash, a hang or a foreign exception is a fault.

    python tests/fuzzing.py [--count 20000] [--seed 0] [--only parquet] [--workers 2]

Mutation i of a form is drawn from (seed, form, i) alone: `--only FORM --first I --count 1` repeats it.
Readers run in processes of their own, so that a segmentation fault is counted and the next mutation goes on.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mufin.data.catalogue import Catalogue
from mufin.data.check import check
from mufin.data.formats import parquet
from mufin.data.importers.amazon.curate import Curation
from mufin.data.item import Item
from mufin.errors import MufinError
from mutations import mutate

SAMPLES = Path(__file__).resolve().parent / "samples"
MEMORY = 6 << 30  # bytes of address space of a worker
EVERY = "every"  # a name for all forms in turn
PATIENCE = 60  # seconds for one mutation
TABLE = {"id": "sku", "text": ["title", "description"], "image": ["photo", "photo2"], "labels": "tags"}

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Form:
    """A folder of files, those of them that are mutated, and how it is read."""

    files: dict[str, bytes]
    mutated: list[str]
    read: Read


@dataclass
class Outcome:
    """How often a form was read well, refused, or went wrong."""

    good: int = 0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)  # the first mutation with each fault

    def add(self, fault: str, index: int) -> None:
        self.faults[fault] += 1
        self.first.setdefault(fault, index)


@cache
def forms() -> dict[str, Form]:
    """Every form of data that is read."""
    found = {
        f"catalogue-{name}": Form(files, [file for file in files if "images/" not in file], use)
        for name, files in _catalogues().items()
    }
    found["catalogue-parquet-stored"] = replace(found["catalogue-parquet-plain"], read=_stored)
    for name in ("meta-2014.json", "meta-2018.json.gz", "meta-2023.jsonl"):
        raw = (SAMPLES / "amazon" / name).read_bytes()
        found[f"amazon-{name.split('.')[0]}"] = Form({name: raw}, [name], partial(_amazon, name=name))
    for name, read in (("xc", Catalogue.from_xc), ("released", Catalogue.from_xc), ("polyvore", _polyvore)):
        files = _files(SAMPLES / name)
        found[name] = Form(
            files, [file for file in files if not file.endswith(".jpg")], partial(_imported, read)
        )
    for name, raw in _tables().items():
        found[f"table-{name[9:]}"] = Form({name: raw}, [name], partial(_imported, partial(_table, name=name)))
    files = _files(SAMPLES / "table" / "saved")
    columns = {"text": "caption", "image": "image", "labels": "tags"}
    found["dataset"] = Form(
        files, list(files), partial(_imported, partial(Catalogue.from_dataset, **columns))
    )
    return found


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _catalogues() -> dict[str, dict[str, bytes]]:
    """Part of the demo, and outfits, as JSONL and as Parquet of several encodings."""
    demo = Catalogue.demo()
    split = demo.parts["train"].table().slice(0, 12)
    items = list(demo.items.take(demo.items.rows(split.column("id"))))
    wanted = {label for row in split.column("labels").to_pylist() for label in row}
    labels = [label for label in demo.labels if label.id in wanted]
    pairs = dict(zip(split.column("id").to_pylist(), split.column("labels").to_pylist(), strict=True))
    made = Catalogue.build(items, labels, filter=[(items[0].id, labels[0].id)], train=pairs, test=pairs)
    ids = [item.id for item in items]
    outfits = Catalogue.build([Item(i, [i], category="x") for i in ids], sets={"outfits": [ids[:3], ids[3:]]})
    outfits.parts["fitb"] = _questions(ids)
    found: dict[str, dict[str, bytes]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, catalogue in (("demo", made), ("outfits", outfits)):
            for form in ("jsonl", "parquet"):
                folder = Path(temporary) / f"{form}-{name}"
                catalogue.write(folder, form)  # type: ignore[arg-type]  # both are formats
                found[f"{form}-{name}"] = _files(folder)
        found["parquet-plain"] = _rewritten(found["parquet-demo"], compression="none", use_dictionary=False)
        found["parquet-dictionary"] = _rewritten(found["parquet-demo"], compression="none", version="1.0")
        found["parquet-pages"] = _rewritten(
            found["parquet-demo"], compression="snappy", data_page_version="2.0", row_group_size=5
        )
    return found


def _questions(ids: list[str]) -> Any:
    from mufin.data.formats.files import Part

    columns = {"query": [ids[:2], ids[2:4]], "choices": [ids[4:8], ids[5:9]], "answer": [0, 3]}
    return Part("fitb", "questions", pa.table(columns))


def _rewritten(files: dict[str, bytes], **options: Any) -> dict[str, bytes]:
    made = {}
    for name, raw in files.items():
        buffer = io.BytesIO()
        pq.write_table(pq.read_table(io.BytesIO(raw)), buffer, **options)
        made[name] = buffer.getvalue()
    return made


def _tables() -> dict[str, bytes]:
    """The CSV sample in every form of a table."""
    import csv

    raw = (SAMPLES / "table" / "products.csv").read_bytes()
    rows = list(csv.DictReader(io.StringIO(raw.decode())))
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer, compression="none")
    return {
        "products.csv": raw,
        "products.tsv": raw.replace(b",", b"\t"),
        "products.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
        "products.parquet": buffer.getvalue(),
    }


def use(folder: Path) -> None:
    """Read everything that a catalogue folder can say, and check it; `check` itself must never raise."""
    for problem in check(folder, decode=False).problems:
        if problem.message.startswith("cannot be checked"):
            raise AssertionError(problem.message)
    _all(Catalogue.read(folder))


def _stored(folder: Path) -> None:
    """As `use`, with pictures that stay in the Parquet file however small they are."""
    limit, parquet.LAZY_BYTES = parquet.LAZY_BYTES, 0
    try:
        use(folder)
    finally:
        parquet.LAZY_BYTES = limit


def _all(catalogue: Catalogue) -> None:
    for name in catalogue.splits:
        catalogue.split(name)
    for items in (catalogue.items, catalogue.labels):
        items.flat_texts()
        for row in range(len(items)):
            _ = items[row]
    for name in catalogue.sets:
        catalogue.from_sets(name)
    for name, part in catalogue.parts.items():
        if part.kind == "questions":
            catalogue.questions(name)
    _ = catalogue.filter


def _amazon(folder: Path, name: str) -> None:
    from mufin.data.importers.amazon.importer import import_amazon

    import_amazon([folder / name], folder / "out", Curation())
    import_amazon([folder / name], folder / "all", None)
    _all(Catalogue.read(folder / "all"))


def _polyvore(folder: Path) -> Catalogue:
    Catalogue.from_polyvore(folder, "nondisjoint")
    return Catalogue.from_polyvore(folder)


def _table(folder: Path, name: str) -> Catalogue:
    return Catalogue.from_table(folder / name, **TABLE)


def _imported(read: Callable[[Path], Catalogue], folder: Path) -> None:
    """Read, use and write what an importer makes of a folder."""
    catalogue = read(folder)
    _all(catalogue)
    catalogue.write(folder / "out")
    assert catalogue.imported is not None
    catalogue.imported.lines()


# -- workers -------------------------------------------------------------------------------------------------


def run(form: str, seed: int, first: int, count: int) -> Outcome:
    """Read this many mutations of a form, in as many processes as crashes need."""
    outcome, index, last = Outcome(), first, first + count
    while index < last:
        command = [sys.executable, __file__, "--worker", form, str(seed), str(index), str(last)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in _answers(process):
            index, said = int(line.partition(" ")[0]) + 1, line.partition(" ")[2].strip()
            match said:
                case "good":
                    outcome.good += 1
                case "refused":
                    outcome.refused += 1
                case _:
                    outcome.add(said, index - 1)
        _, errors = process.communicate()
        if process.returncode == 0:
            break
        if process.returncode > 0:
            raise RuntimeError(f"the worker of {form} failed at {index}: {errors[-2000:]}")
        reason = next((line for line in errors.splitlines() if "terminate" in line or "what()" in line), "")
        outcome.add(f"signal {-process.returncode} {reason}".strip(), index)
        index += 1
    return outcome


def _answers(process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines of a worker; one that is silent for too long is killed."""
    assert process.stdout is not None
    while True:
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            process.kill()
            return
        line = process.stdout.readline()
        if not line:
            return
        yield line


def work(name: str, seed: int, first: int, last: int) -> None:
    """The worker: print for each mutation what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    names = sorted(forms()) if name == EVERY else [name]
    for index in range(first, last):
        form = forms()[names[index % len(names)]]
        said = attempt(form, random.Random(f"{seed} {name} {index}"))
        sys.stdout.write(f"{index} {said}\n")
        sys.stdout.flush()


def attempt(form: Form, rng: random.Random) -> str:
    """Read one mutation: `good`, `refused`, or the foreign exception and where it came from."""
    with tempfile.TemporaryDirectory(prefix="mufin-fuzz-") as temporary:
        folder = Path(temporary) / "data"
        chosen = set(rng.sample(form.mutated, min(len(form.mutated), rng.choice([1, 1, 1, 2]))))
        for file, raw in form.files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(mutate(file, raw, rng) if file in chosen else raw)
        if rng.random() < 0.03:
            (folder / rng.choice(sorted(chosen))).unlink()
        try:
            form.read(folder)
        except MufinError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__} {_place(error)}: {str(error)[:80]!r}"
        finally:
            shutil.rmtree(folder / "out", ignore_errors=True)
    return "good"


def _place(error: BaseException) -> str:
    """The innermost line of mufin in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/mufin/" in frame.filename] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=20_000, help="mutations in all")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="only forms with this in their name")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], *map(int, args.worker[1:]))
        return
    names = [name for name in forms() if args.only in name]
    count = -(-args.count // len(names))
    with ThreadPoolExecutor(args.workers) as pool:
        outcomes = list(pool.map(lambda name: run(name, args.seed, args.first, count), names))
    lines = [
        "| form | mutations | read | refused | foreign exceptions | crashes |",
        "|---|---|---|---|---|---|",
    ]
    total = Counter[str]()
    for name, one in zip(names, outcomes, strict=True):
        crashes = sum(n for fault, n in one.faults.items() if fault.startswith("signal"))
        foreign = one.faults.total() - crashes
        total.update(mutations=count, read=one.good, refused=one.refused, foreign=foreign, crashes=crashes)
        lines.append(f"| {name} | {count:,} | {one.good:,} | {one.refused:,} | {foreign} | {crashes} |")
    lines.append("| all | " + " | ".join(f"{value:,}" for value in total.values()) + " |")
    for name, one in zip(names, outcomes, strict=True):
        lines += [f"{name} {one.first[fault]} × {n}: {fault}" for fault, n in one.faults.most_common()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
