"""Measure throughput and latency of the service, the effect of batching, and memory under load.

    mufin demo                              # creates runs/demo, if there is no model yet
    python benchmarks/serve.py              # a few minutes; writes benchmarks/results/serve.{md,json}
    python benchmarks/serve.py --soak 600   # ten minutes of mixed load instead, to measure memory

The client is wrk (`apt-get install wrk`) with texts that never repeat (serve.lua). `writes` adds and removes
labels continuously, one call after the other, and checks afterwards that every confirmed write persists. The
mixed load has an image of 480 × 360 in every fifth item, and two writes per second.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
TARGETS = {"p50": 30.0, "p99": 90.0, "per_second": 80.0, "times": 2.0, "memory": 3.0}


class Service:
    """`mufin serve` on a copy of a model."""

    def __init__(self, model: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mufin", "serve", str(model), "--port", "0", "--log", "json", *options],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"Open\s+(http://\S+)/", line):
                self.url = found[1]
                return
        raise SystemExit("the service did not start; try: mufin serve runs/demo")

    def request(self, path: str, body: Any = None, method: str = "GET") -> Any:
        data = None if body is None else json.dumps(body).encode()
        call = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(call, timeout=30) as response:
            return json.load(response)

    def memory(self) -> dict[str, float]:
        """Resident memory in MB: total, and not mapped from files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(re.findall(rf"{name}:\s+(\d+)", status)[0]) / 1024 for name in ("VmRSS", "RssAnon")}

    def batch_counts(self) -> tuple[float, float]:
        """Number of items and batches so far."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        items, batches = (re.findall(rf"mufin_batch_items_{n} (\S+)", text)[0] for n in ("sum", "count"))
        return float(items), float(batches)


@contextmanager
def service(model: Path, *options: str) -> Iterator[Service]:
    with tempfile.TemporaryDirectory(prefix="mufin-bench-") as folder:
        copied = Path(shutil.copytree(model, Path(folder, "model")))
        found = Service(copied, *options)
        try:
            yield found
        finally:
            found.process.send_signal(signal.SIGTERM)
            found.process.wait(30)


def load(service: Service, clients: int, seconds: int, image: Path | None = None) -> dict[str, Any]:
    """Results of wrk with this many clients, each sending its next request immediately."""
    before = service.batch_counts()
    extra = [str(random.randrange(10**6)), *([str(image)] if image else [])]
    done = subprocess.run(
        ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s", "-s", str(HERE / "serve.lua"),
         f"{service.url}/v1/recommend", "--", *extra],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    seen: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    items, batches = (b - a for a, b in zip(before, service.batch_counts(), strict=True))
    seen["per_second"] = seen["requests"] / seen["seconds"]
    seen["batch"] = items / max(batches, 1)
    return seen


class Writer:
    """Add and remove labels in a thread until stopped, and track what should exist."""

    def __init__(self, service: Service, pause: float = 0.0) -> None:
        self.service, self.pause = service, pause
        self.expected: set[str] = set()
        self.times: list[float] = []
        self.errors: list[str] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        number = 0
        while not self.stopped.wait(self.pause):
            number += 1
            name = f"bench-{number}"
            started = time.perf_counter()
            try:
                if number % 2 or not self.expected:
                    label = {"id": name, "texts": [f"bench label {number}"]}
                    self.service.request("/v1/labels", {"labels": [label]}, "POST")
                    self.expected.add(name)
                else:
                    gone = self.expected.pop()
                    self.service.request(f"/v1/labels/{gone}", method="DELETE")
            except urllib.error.HTTPError as error:
                if error.code != 429:
                    self.errors.append(f"{error.code}")
            self.times.append(time.perf_counter() - started)

    def __enter__(self) -> Writer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join()

    def lost(self) -> int:
        """Number of labels that are missing or were not removed."""
        found = self.service.request("/v1/labels?q=bench-&limit=500")
        return len({label["id"] for label in found["labels"]} ^ self.expected)


def measure(model: Path, seconds: int, rounds: int) -> list[dict[str, Any]]:
    rows = []
    for name, options in (("batching", ()), ("no batching", ("--batch", "1"))):
        with service(model, *options) as one:
            load(one, 8, 6)  # warm up
            seen: dict[int, list[dict[str, Any]]] = {1: [], 8: [], 64: []}
            for _ in range(rounds):  # alternately, so that noise on a shared machine affects all of them
                for clients, found in seen.items():
                    found.append(load(one, clients, seconds))
                    print(name, clients, found[-1], flush=True)
            rows += [{"what": name, "clients": c, **medians(found)} for c, found in seen.items()]
            if name == "batching":
                with Writer(one) as writer:
                    during = load(one, 8, 2 * seconds)
                writes = {"writes": len(writer.times), "lost": writer.lost(), "write_errors": writer.errors}
                rows.append({"what": "batching, writes", "clients": 8, **during, **writes})
                print(rows[-1], flush=True)
    return rows


def medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every number; failures are summed."""
    middle = {name: statistics.median(seen[name] for seen in found) for name in found[0]}
    wrong = {name: sum(seen[name] for seen in found) for name in ("not_ok", "broken")}
    return middle | wrong | {"p50 of each round": [seen["p50"] for seen in found]}


def soak(model: Path, seconds: int) -> dict[str, Any]:
    """Measure memory during a mixed load."""
    encoded = io.BytesIO()
    Image.effect_noise((480, 360), 60).convert("RGB").save(encoded, "JPEG", quality=85)
    with service(model) as one, tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(base64.b64encode(encoded.getvalue()).decode())
        file.flush()
        samples, total = [], {"requests": 0, "not_ok": 0, "broken": 0}
        with Writer(one, pause=0.5) as writer:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                seen = load(one, 8, 5, Path(file.name))
                total = {name: count + seen[name] for name, count in total.items()}
                samples.append({"seconds": round(seconds - (end - time.monotonic())), **one.memory()})
                print(samples[-1], flush=True)
        writes = {"writes": len(writer.times), "lost": writer.lost()}
        return {"seconds": seconds, **total, **writes, **memory_change(samples)}


def memory_change(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Memory after a warm-up of a tenth of the time, and at the end."""
    found: dict[str, Any] = {}
    for kind in ("VmRSS", "RssAnon"):
        values = [sample[kind] for sample in samples[len(samples) // 10 :]]
        middle = sum(values) / len(values)
        found[kind] = {
            "first": values[0], "last": values[-1], "least": min(values), "most": max(values),
            "percent": 100 * (values[-1] - values[0]) / values[0],
            "spread": 100 * max(max(values) - middle, middle - min(values)) / middle,
        }  # fmt: skip
    return found


def report(results: dict[str, Any]) -> str:
    lines = [
        "# The service under load",
        "",
        "Written by `benchmarks/serve.py`; times in ms, seen by wrk, medians over alternating rounds.",
        f"{results['machine']}. Text queries, k = 10, the demo model (2,440 labels).",
    ]
    lines += table(results["load"]) if "load" in results else []
    lines += memory(results["soak"]) if "soak" in results else []
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["", "| | clients | requests/s | p50 | p95 | p99 | mean batch | not 200 | failed |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        numbers = [f"{row['per_second']:.0f}", *(f"{row[p]:.0f}" for p in ("p50", "p95", "p99"))]
        numbers += [f"{row['batch']:.1f}", str(row["not_ok"]), str(row["broken"])]
        lines.append(f"| {row['what']} | {row['clients']} | {' | '.join(numbers)} |")
    return [*lines, "", *targets(rows)]


def memory(found: dict[str, Any]) -> list[str]:
    all_, own = found["VmRSS"], found["RssAnon"]
    met = "met" if max(abs(all_["percent"]), all_["spread"]) <= TARGETS["memory"] else "missed"
    return [
        "",
        f"Mixed load for {found['seconds']} s, 8 clients: {found['requests']:,} requests, "
        f"{found['not_ok']} not 200, {found['broken']} failed; {found['writes']} writes, "
        f"{found['lost']} lost. "
        f"Resident memory {all_['first']:.0f} MB after a tenth of the time, "
        f"{all_['last']:.0f} MB at the end",
        f"({all_['least']:.0f} to {all_['most']:.0f} from then on): {all_['percent']:+.1f} %, at most "
        f"{all_['spread']:.1f} % from the mean; target ± 3 %: {met}. "
        f"Not mapped from files: {own['first']:.0f} and {own['last']:.0f} MB.",
    ]


def targets(rows: list[dict[str, Any]]) -> list[str]:
    by = {(r["what"], r["clients"]): r for r in rows}
    eight, many, alone = by["batching", 8], by["batching", 64], by["no batching", 64]
    times, per_second = many["per_second"] / alone["per_second"], many["per_second"]
    seen = by["batching, writes", 8]
    wrong = seen["lost"] + seen["not_ok"] + seen["broken"] + len(seen["write_errors"])
    writes = (
        f"{seen['writes']} writes during the load, {seen['lost']} lost, {seen['not_ok']} requests not 200"
    )
    checks = [
        (f"p50 at 8 clients {eight['p50']:.0f} ms, target 30", eight["p50"] <= TARGETS["p50"]),
        (f"p99 at 8 clients {eight['p99']:.0f} ms, target 90", eight["p99"] <= TARGETS["p99"]),
        (f"{per_second:.0f} requests/s at 64 clients, target 80", per_second >= TARGETS["per_second"]),
        (f"{times:.1f} times the throughput without batching, target 2", times >= TARGETS["times"]),
        (writes, not wrong),
    ]
    return [f"- {'met' if good else 'missed'}: {text}" for text, good in checks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path, nargs="?", default=Path("runs/demo"))
    parser.add_argument("--seconds", type=int, default=6, help="duration of each measurement")
    parser.add_argument(
        "--rounds", type=int, default=5, help="number of measurements, of which the median is shown"
    )
    parser.add_argument("--soak", type=int, metavar="SECONDS", help="run a mixed load for this long instead")
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed; try: apt-get install wrk")
    file = RESULTS / "serve.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    cpu = re.search(r"model name\s+: (.+)", Path("/proc/cpuinfo").read_text())
    cores = len(re.findall(r"^processor", Path("/proc/cpuinfo").read_text(), re.M))
    name = cpu[1] if cpu else platform.processor()
    busy = f"load average before {os.getloadavg()[0]:.1f}"  # other load; should be near 0
    results["machine"] = f"{cores} cores of {name}, Python {platform.python_version()}, {busy}"
    if options.soak:
        results["soak"] = soak(options.model, options.soak)
    else:
        results["load"] = measure(options.model, options.seconds, options.rounds)
    file.write_text(json.dumps(results, indent=1) + "\n")
    text = report(results)
    (RESULTS / "serve.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
