"""Fuzz the parsers of bytes from outside, guided by coverage: anything but a documented error is a fault.

    python benchmarks/reliability/fuzz.py jsonl images --runs 1000000
    python benchmarks/reliability/fuzz.py all --seconds 10
    python benchmarks/reliability/fuzz.py jsonl --input tests/samples/found/jsonl/name    # repeat one input

A fault is also an input that takes more than 2 s of CPU time, 20 s in all, or 512 MB of memory, and one that
ends the process. The input is kept in build/fuzz/PARSER/, like the corpus, from which a later run goes on.
Linux only, since atheris is.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import atheris
import pyarrow as pa
from mutations import mutate

with atheris.instrument_imports(include=["mufin", "PIL", "tomllib", "zipfile"], enable_loader_override=False):
    import parsers

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / "tests" / "samples" / "found"
CPU_SECONDS = 2.0  # of one input
SECONDS = 20  # of one input, which may wait for the CPU
MEMORY = 512 << 20  # bytes by which one input may make the process grow


@dataclass(frozen=True)
class Result:
    """What came of one parser."""

    parser: str
    executions: int
    seconds: float
    status: int  # of the process; not 0: a fault
    log: str

    @property
    def fault(self) -> str:
        """The exception or the signal that ended the run; empty without one."""
        if not self.status:
            return ""
        said = re.findall(r"(?:Uncaught Python exception: ===\n(.*)|ERROR: libFuzzer: (.*))", self.log)
        place = re.findall(r'File ".*/(mufin/.*|PIL/.*)", line (\d+)', self.log)
        where = ":".join(place[-1]) if place else ""
        return " ".join(["".join(said[0]) if said else f"status {self.status}", where]).strip()


def one_input(name: str, data: bytes) -> None:
    """Parse an input; raise whatever is not a documented error, and TimeoutError or MemoryError."""
    parser = parsers.PARSERS[name]
    before, started = _peak(), time.process_time()
    with suppress(*parser.errors):
        parser.read(data)
    if (took := time.process_time() - started) > CPU_SECONDS:
        raise TimeoutError(f"{took:.1f} s of CPU time")
    if (grown := _peak() - before) > MEMORY:
        raise MemoryError(f"the process has grown by {grown >> 20} MB")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _mutated(name: str, data: bytes, most: int, seed: int) -> bytes:
    """Mutate an input: mostly byte by byte, else as a file of its kind, which takes longer."""
    rng, parser = random.Random(seed), parsers.PARSERS[name]
    if rng.random() < 0.9:
        return atheris.Mutate(data, most)
    head = 1 if parser.kinds > 1 else 0
    kind = bytes([rng.randrange(parser.kinds)]) if head and rng.random() < 0.05 else data[:head]
    try:
        return (kind + mutate(parser.name, data[head:], rng))[:most]
    except Exception:  # a compressed file that is not one anymore
        return atheris.Mutate(data, most)


def fuzz(name: str, folder: Path, runs: int, seconds: int) -> None:
    """Fuzz one parser in this process, which ends with it."""
    pa.set_cpu_count(1)  # not in the parent: threads of Arrow that exist before a fork can stop the child
    pa.set_io_thread_count(1)
    parser = parsers.PARSERS[name]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = [*parser.seeds(), *(path.read_bytes() for path in sorted((FOUND / name).glob("*")))]
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number:02d}").write_bytes(seed)
    options = [
        f"-max_len={parser.max_len}", f"-artifact_prefix={folder}/", f"-timeout={SECONDS}", "-rss_limit_mb=0",
        f"-runs={runs}", f"-max_total_time={seconds}", "-print_final_stats=1", "-verbosity=1",
    ]  # fmt: skip
    atheris.Setup(
        [sys.argv[0], *options, str(corpus)],
        lambda data: one_input(name, data),
        custom_mutator=lambda data, most, seed: _mutated(name, data, most, seed),
    )
    atheris.Fuzz()


def run(names: list[str], folder: Path, runs: int, seconds: int, jobs: int) -> Iterator[Result]:
    """Fuzz parsers, each in a process of its own and so many at a time."""
    waiting, running = names[::-1], dict[int, tuple[str, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            (folder / name).mkdir(parents=True, exist_ok=True)
            if not (child := os.fork()):
                with (folder / name / "log.txt").open("wb") as log:
                    os.dup2(log.fileno(), 1)
                    os.dup2(log.fileno(), 2)
                fuzz(name, folder / name, runs, seconds)
            running[child] = name, time.monotonic()
        child, status = os.wait()
        name, started = running.pop(child)
        parsers.remove_scratch(child)
        said = (folder / name / "log.txt").read_text("utf-8", "replace")
        counts = re.findall(r"number_of_executed_units: (\d+)|^#(\d+)\s", said, re.M)
        count = max((int(a or b) for a, b in counts), default=0)
        yield Result(name, count, time.monotonic() - started, os.waitstatus_to_exitcode(status), said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "parsers", nargs="+", metavar="PARSER", help=f"all, or of {', '.join(parsers.PARSERS)}"
    )
    parser.add_argument("--runs", type=int, default=-1, help="executions per parser; default: no limit")
    parser.add_argument("--seconds", type=int, default=0, help="per parser; default: no limit")
    parser.add_argument("--jobs", type=int, default=1, help="parsers fuzzed at a time")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--input", type=Path, help="parse this input only")
    args = parser.parse_args()
    parsers.quicken()
    names = list(parsers.PARSERS) if args.parsers == ["all"] else args.parsers
    if args.input:
        one_input(names[0], args.input.read_bytes())
        return 0
    print("| parser | executions | seconds | fault |\n|---|---|---|---|", flush=True)
    found = list(run(names, args.folder, args.runs, args.seconds, args.jobs))
    for one in sorted(found, key=lambda one: names.index(one.parser)):
        print(f"| {one.parser} | {one.executions:,} | {one.seconds:.0f} | {one.fault} |")
    return int(any(one.status for one in found))


if __name__ == "__main__":
    sys.exit(main())
