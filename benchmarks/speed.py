"""How fast is every stage, how does it grow with the labels, and how far is it from what the hardware allows?

    python benchmarks/speed.py --device cuda --out DIR     # all sections for a GPU, about five minutes
    python benchmarks/speed.py --device cuda --out DIR --only search,module_two
    python benchmarks/speed.py --device cpu --sizes 10K,100K,303K

Catalogues of the paper's sizes are made (`speed_made.py`); encoders have the true shapes and random weights.
DIR/speed-<device>.json is written after each section; a section that fails is reported there and skipped.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # where mufin is not installed


class Book:
    """Results by section, on disk after each."""

    def __init__(self, path: Path, only: set[str]) -> None:
        self.path, self.only = path, only
        self.results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.results["machine"] = machine()
        self.started = time.perf_counter()

    def section(self, name: str, run: Callable[[], Any], joins: str = "") -> Any:
        """Run, print and keep, beside the rows of sizes other than `joins`; None where it failed."""
        if self.only and name not in self.only and name != "limits":
            return None
        start = time.perf_counter()
        try:
            found, failed = run(), None
        except Exception as error:
            found, failed = None, f"{type(error).__name__}: {error}"
            traceback.print_exc()
        took = time.perf_counter() - start
        kept = self.results.get(name, []) if joins else []
        others = [row for row in kept if row.get("size") != joins]
        if failed:
            self.results[name] = [*others, {"size": joins, "failed": failed}] if joins else {"failed": failed}
        else:
            self.results[name] = [*others, *found] if joins else found
        self.results.setdefault("seconds", {})[name] = round(took, 1)
        self.path.write_text(json.dumps(self.results, indent=1, default=str))
        print(f"\n## {name} ({took:.1f} s, {time.perf_counter() - self.started:.0f} s in all)", flush=True)
        rows = found if isinstance(found, list) else [found] if found else [{"failed": failed}]
        for row in rows:
            print("  " + ", ".join(f"{key}: {short(value)}" for key, value in row.items()), flush=True)
        return found


def short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    facts = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        facts["device"] = torch.cuda.get_device_name()
    else:
        names = [
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
        ]
        facts["device"] = f"{names[0].split(': ')[1]} ({len(names)} cores)"
    return facts


def on_gpu(book: Book, sizes: list[str]) -> None:
    import speed_gpu as gpu

    bounds = book.section("limits", gpu.limits)
    if bounds is None:
        raise SystemExit("the hardware's limits could not be measured")
    book.section("check", gpu.check)
    book.section("tune", gpu.tune)
    book.section("parts_of_a_search", gpu.parts_of_a_search)
    book.section("search", lambda: gpu.search(sizes, bounds))
    book.section("module_two", gpu.module_two)
    rows = book.section("encoders", lambda: gpu.encoders(bounds)) or []
    book.section("end_to_end", lambda: gpu.end_to_end(sizes, compiled=False))
    if any(row["how"] == "compiled" and "failed" not in row for row in rows):
        big = [name for name in sizes if name in ("303K", "4.5M")]
        book.section("end_to_end_compiled", lambda: gpu.end_to_end(big, compiled=True))
    book.section("module_one", lambda: gpu.module_one(bounds))
    book.section("classifiers", gpu.classifiers)


def on_cpu(book: Book, sizes: list[str], options: argparse.Namespace) -> None:
    import speed_cpu as cpu

    cache = options.cache
    book.section("limits", cpu.limits)
    if options.trained and options.catalogue:
        book.section("difficulty", lambda: cpu.difficulty(options.trained, options.catalogue))
    book.section("metrics", cpu.scoring)
    for name in sizes:  # each joins the rows of other sizes
        for section, run in (
            ("build", cpu.build), ("search", cpu.search), ("stages", cpu.stages), ("loading", cpu.loading),
            ("peers", partial(cpu.peers, hnswlib_at=options.hnswlib)),
        ):  # fmt: skip
            if section == "search" or not cpu.is_large(name):
                book.section(section, partial(run, name, cache), joins=name)
    if len(book.results.get("search", [])) > 3:
        book.section("growth", lambda: cpu.growth(book.results["search"], cache))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", default="", help="sections, with commas between")
    parser.add_argument("--sizes", default="10K,100K,303K,1M,4.5M")
    parser.add_argument("--cache", type=Path, default=Path("build/speed"), help="where made models are kept")
    parser.add_argument("--trained", type=Path, help="a model trained on icon-search")
    parser.add_argument("--catalogue", type=Path, help="icon-search itself")
    parser.add_argument("--hnswlib", default="", help="a folder that hnswlib is installed in")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name().split()[-1].lower() if options.device == "cuda" else "cpu"
    book = Book(options.out / f"speed-{name}.json", set(filter(None, options.only.split(","))))
    sizes = options.sizes.split(",")
    if options.device == "cuda":
        on_gpu(book, sizes)
    else:
        on_cpu(book, sizes, options)


if __name__ == "__main__":
    main()
