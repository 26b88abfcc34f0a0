"""Abuse a real `mufin serve` on 127.0.0.1, and watch a healthy client meanwhile.

    mufin demo                                                  # creates runs/demo, if there is no model yet
    python benchmarks/reliability/abuse.py runs/demo            # everything, about ten minutes
    python benchmarks/reliability/abuse.py runs/demo --only kills --kills 50
    python benchmarks/reliability/abuse.py runs/demo --only token

Every attack runs for --seconds against a copy of the model while another process sends short text queries,
and is repeated until that process has 300 answers. A line gives what was sent, the answers, p99 of the
healthy client as a multiple of p99 before the attacks, how many of its queries were refused (429, 503) or
failed, and the memory that the service took at most. An attack fails if it sends nothing or gets an answer
that it should not, if a healthy query is refused or fails, if p99 grows more than fivefold, or if the
service takes over 1 GiB more.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from PIL import Image

TOKEN = "correct-horse-battery-staple-0123456789"
GROWTH = 1 << 30  # bytes that the service may take more than at rest
TIMES = 5.0  # p99 of a healthy client, compared with p99 at rest
ATTACKERS = 8
SAMPLES = 300  # answers that p99 of a healthy client is taken from
DEADLINE = 15.0  # seconds; the service cuts silent and slow clients after 10


class Service:
    """`mufin serve` as a process of its own."""

    def __init__(self, model: Path, token: str | None = None) -> None:
        env = {**os.environ, **({"MUFIN_TOKEN": token} if token else {})}
        self.model = model
        with tempfile.TemporaryFile("w+") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mufin", "serve", str(model), "--port", "0", "--log", "json"],
                stdout=subprocess.PIPE, stderr=errors, text=True, env=env,
            )  # fmt: skip
            assert self.process.stdout is not None
            for line in self.process.stdout:
                if found := re.match(r"Open\s+http://127.0.0.1:(\d+)/", line):
                    self.port = int(found[1])
                    return
            errors.seek(0)
            raise SystemExit(f"the service did not start ({self.process.wait()}): {errors.read()[-2000:]}")

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, path, content, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def memory(self, kind: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(rf"{kind}:\s+(\d+)", status)[0]) << 10

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@contextmanager
def service(model: Path, token: str | None = None) -> Iterator[Service]:
    """Serve a copy of a model."""
    with tempfile.TemporaryDirectory(prefix="mufin-abuse-") as folder:
        found = Service(Path(shutil.copytree(model, Path(folder, "inside", "model"))), token)
        try:
            yield found
        finally:
            found.stop()


# -- a healthy client ----------------------------------------------------------------------------------------


def probe(port: int, stop: Any, answered: Any, out: Any) -> None:
    """Send a short query every 20 ms; put the times of answers in ms, and count other outcomes."""
    times, others, number = [], Counter[str](), 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    while not stop.is_set():
        number += 1
        body = json.dumps({"items": [{"texts": [f"oak desk {number}"]}]}).encode()
        started = time.perf_counter()
        try:
            connection.request("POST", "/v1/recommend", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            others["failed"] += 1
            connection.close()
        else:
            if answer.status == 200 and content:
                times.append(1e3 * (time.perf_counter() - started))
                answered.value = len(times)
            else:
                others["refused" if answer.status in (429, 503) else "failed"] += 1
        time.sleep(0.02)
    out.put((times, others))


class Healthy:
    """A healthy client in a process of its own."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.stop, self.out, self.answered = context.Event(), context.Queue(), context.Value("i", 0)
        arguments = (port, self.stop, self.answered, self.out)
        self.process = context.Process(target=probe, args=arguments)
        self.process.start()
        started = time.monotonic()
        while not self.answered.value and time.monotonic() - started < 30:  # it imports
            time.sleep(0.05)

    def end(self) -> tuple[list[float], Counter[str]]:
        self.stop.set()
        found: tuple[list[float], Counter[str]] = self.out.get(timeout=60)
        self.process.join()
        return found


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


# -- raw requests --------------------------------------------------------------------------------------------


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def posted(body: bytes, path: str = "/v1/recommend", *headers: str) -> bytes:
    return head(path, f"Content-Length: {len(body)}", *headers) + body


async def exchange(port: int, sent: bytes, wait: float = 60.0, finish: bool = True) -> str:
    """Send bytes and return the status of the answer, or how the connection ended."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "refused"
    try:
        writer.write(sent)
        with suppress(OSError):
            await writer.drain()
        if not finish:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.readline(), wait)
        return answer.split()[1].decode() if answer else "closed"
    except OSError:
        return "closed"
    except TimeoutError:
        return "no answer"
    finally:
        writer.close()


async def drip(port: int, begun: bytes, piece: bytes, until: float) -> str:
    """Send bytes one after the other, one every half second; return how it ended."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "refused"
    try:
        writer.write(begun)
        while time.monotonic() < until:
            with suppress(TimeoutError):
                answer = await asyncio.wait_for(reader.readline(), 0.5)
                return answer.split()[1].decode() if answer else "closed"
            writer.write(piece)
        return "still open"
    except OSError:
        return "closed"
    finally:
        writer.close()


Strike = Callable[[int, float], Coroutine[Any, Any, Counter[str]]]


def repeated(bodies: list[bytes], finish: bool = True) -> Strike:
    """Send each of these in turn, by several attackers at once; each is sent at least once."""

    async def strike(port: int, seconds: float) -> Counter[str]:
        until = time.monotonic() + seconds
        numbers, found = itertools.count(), Counter[str]()

        async def one() -> None:
            while (number := next(numbers)) < len(bodies) or time.monotonic() < until:
                found[await exchange(port, bodies[number % len(bodies)], finish=finish)] += 1

        await asyncio.gather(*(one() for _ in range(ATTACKERS)))
        return found

    return strike


def dripping(connections: int, begun: bytes, piece: bytes) -> Strike:
    """Send the same slowly over many connections."""

    async def strike(port: int, seconds: float) -> Counter[str]:
        until = time.monotonic() + max(seconds, DEADLINE)
        return Counter(await asyncio.gather(*(drip(port, begun, piece, until) for _ in range(connections))))

    return strike


# -- attacks: each returns what it got -----------------------------------------------------------------------


def slow_heads() -> Strike:
    return dripping(500, b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ", b"x")


def slow_bodies() -> Strike:
    begun = head("/v1/recommend", "Content-Length: 15000000") + b'{"items": [{"texts": ["'
    return dripping(500, begun, b"x" * 100)


def idle_connections() -> Strike:
    return dripping(2000, b"", b"")


def wrong_lengths() -> Strike:
    body = b'{"items": [{"texts": ["red"]}]}'
    chunked = "Transfer-Encoding: chunked"
    nonsense = [b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"5\r\nabc", b"1\r\nabcdef\r\n", b"\r\n\r\n"]
    cut = [head("/v1/recommend", "Content-Length: 900") + body]
    long = [head("/v1/recommend", "Content-Length: 4") + body]
    many = [head("/v1/recommend", f"Content-Length: {n}") + body for n in ("-1", "1e3", "9" * 30, "0x1f", "")]
    both = [head("/v1/recommend", chunked, "Content-Length: 31") + body]
    twice = [head("/v1/recommend", "Content-Length: 31", "Content-Length: 4") + body]
    chunks = [head("/v1/recommend", chunked) + piece for piece in nonsense]
    return repeated([*cut, *long, *many, *both, *twice, *chunks], finish=False)


def bombs() -> Strike:
    images = [
        png_bomb(40_000), png_bomb(8_000), png_bomb(6_000), many_frames(), webp_bomb(), tiff_bomb(),
        bmp_bomb(),
        b'<svg xmlns="http://www.w3.org/2000/svg" width="99999" height="99999"><rect/></svg>',
        b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><svg>&b;</svg>',
    ]  # fmt: skip
    bodies = [
        json.dumps({"items": [{"images": [base64.b64encode(image).decode()]}]}).encode() for image in images
    ]
    return repeated([posted(body) for body in bodies])


def deep_json() -> Strike:
    bodies = [
        b"[" * 15_000_000, b'{"a":' * 3_000_000, b'{"items": [' + b"{}," * 5_000_000 + b"{}]}",
        b'{"items": ' + b"9" * 15_000_000 + b"}",
        b'{"items": [{"texts": ["' + b"\\u0000" * 2_500_000 + b'"]}]}',
        b"[" * 60_000, b'{"k": 1e999999, "items": []}', b'{"k": ' + b"9" * 60_000 + b"}",
    ]  # fmt: skip
    return repeated([posted(body) for body in bodies])


TRICKS = (
    "../../x", "..\\..\\x", "/etc/passwd", "a\0b", "\0", "\u202ereversed", "\ufeff", "\ud800", "﷽" * 100,
    "e" + "\u0301" * 400, "🏳️‍🌈" * 80, "<script>alert(1)</script>", "{{7*7}}", "%2e%2e%2f", "x" * (1 << 20),
    "\r\nX: y",
)  # fmt: skip


def tricks() -> Strike:
    """Labels whose ids are tricks are refused, or added and removed again; queries of tricks are answered."""
    adds = [json.dumps({"labels": [{"id": id, "texts": [id[:999]]}]}).encode() for id in TRICKS]
    raw = [b'{"items": [{"texts": ["\xc0\xaf\xed\xa0\x80"]}]}', b'{"items": [{"texts": ["\\ud800"]}]}']
    asks = [json.dumps({"items": [{"texts": [id[:9999]]}]}, ensure_ascii=True).encode() for id in TRICKS]
    removes = [json.dumps({"ids": [id]}).encode() for id in TRICKS]
    sent = [posted(body) for body in (*asks, *raw)]
    for add, remove in zip(adds, removes, strict=True):
        sent += [posted(add, "/v1/labels"), posted(remove, "/v1/labels").replace(b"POST", b"DELETE", 1)]
    return repeated(sent)


def other_sites() -> Strike:
    label = b'{"labels": [{"id": "evil", "texts": ["evil"]}]}'
    ask = b'{"items": [{"texts": ["red"]}]}'
    sites = ("Origin: https://evil.example", "Origin: null", "Sec-Fetch-Site: cross-site",
             "Sec-Fetch-Site: same-site", "Origin: http://127.0.0.1.evil.example")  # fmt: skip
    calls = (("/v1/labels", label), ("/v1/recommend", ask), ("/v1/examples", label))
    sent = [posted(body, path, site) for site in sites for path, body in calls]
    sent.append(posted(ask).replace(b"Host: 127.0.0.1", b"Host: evil.example"))
    hosts = (b"Host: evil.example:80", b"Host: 127.0.0.1.evil.example", b"Host: 0.0.0.0", b"X: y")
    sent += [head("/v1/model", method="GET").replace(b"Host: 127.0.0.1", host) for host in hosts]
    return repeated(sent)


ATTACKS: dict[str, tuple[Callable[[], Strike], set[str]]] = {  # and the answers that are right
    "slow heads, 500 connections": (slow_heads, {"closed"}),
    "slow bodies, 500 connections": (slow_bodies, {"408", "closed"}),
    "idle connections, 2,000": (idle_connections, {"closed"}),
    "bodies of the wrong length": (wrong_lengths, {"400", "413", "422", "closed"}),
    "bombs: PNG, GIF, WebP, TIFF, BMP, SVG": (bombs, {"200", "413", "422", "429", "503"}),
    "deep and huge JSON": (deep_json, {"413", "422", "503"}),
    "unicode, ids that are paths, NUL, 1 MB": (tricks, {"200", "201", "404", "409", "413", "422", "429"}),
    "other sites, foreign hosts": (other_sites, {"400", "403", "421"}),
}


# -- bombs ---------------------------------------------------------------------------------------------------


def png_bomb(side: int) -> bytes:
    """White pixels of 1 bit, deflated."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checked = kind + content
        return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))

    packer, row = zlib.compressobj(9), b"\x00" + b"\xff" * (side // 8)
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def many_frames(count: int = 100_000) -> bytes:
    """A GIF of 1,000 × 1,000 pixels with 10⁵ frames of one pixel."""
    start = b"GIF89a" + struct.pack("<HHBBB", 1000, 1000, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    frame = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\x00"
    return start + frame * count + b";"


def webp_bomb() -> bytes:
    """A WebP that declares 16,383 × 16,383 pixels."""
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:])
    data = bytearray(buffer.getvalue())
    place = data.index(b"VP8X") + 12
    data[place : place + 6] = struct.pack("<I", 16_382)[:3] * 2
    return bytes(data)


def tiff_bomb() -> bytes:
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "TIFF", compression="group4")
    return buffer.getvalue()


def bmp_bomb() -> bytes:
    size = struct.pack("<IiiHHIIiiII", 40, 100_000, 100_000, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + size + b"\0" * 46


# -- measures ------------------------------------------------------------------------------------------------


def attacks(model: Path, seconds: float, only: str | None) -> list[dict[str, Any]]:
    """Run the attacks one after the other against one service."""
    chosen = [name for name in ATTACKS if only in (None, "attacks") or name.startswith(str(only))]
    if not chosen:
        return []
    with service(model) as one:
        watched(one, lambda: time.sleep(2), 50)  # warm up
        idle, others = watched(one, lambda: time.sleep(seconds))
        rest = (percentile(idle, 0.99), one.memory(), files_around(one))
        print(json.dumps({"attack": "none", "p99": round(rest[0], 1), "healthy": len(idle), **others}))
        return [attacked(one, name, seconds, *rest) for name in chosen]


def attacked(
    one: Service, name: str, seconds: float, calm: float, before: int, files: set[str]
) -> dict[str, Any]:
    """Run an attack, and say what was sent and what came of it."""
    attack, right = ATTACKS[name]
    strike, got = attack(), Counter[str]()
    most, stopped = [0], threading.Event()
    sampler = threading.Thread(target=sample, args=(one, most, stopped))
    sampler.start()

    busy, others = watched(one, lambda: got.update(asyncio.run(strike(one.port, seconds))))
    stopped.set()
    sampler.join()
    p99, more = percentile(busy, 0.99), most[0] - before
    row: dict[str, Any] = {
        "attack": name, "sent": got.total(), "answers": dict(got.most_common()),
        "idle p99": round(calm, 1), "p99": round(p99, 1), "times": round(p99 / calm, 1),
        "healthy": len(busy), "refused": others["refused"], "failed": others["failed"],
        "MiB more": more >> 20,
        "wrong": sorted({*got} - right), "new files": sorted(files_around(one) - files),
    }  # fmt: skip
    bad = row["wrong"] or row["new files"] or others.total() or p99 > TIMES * calm or more > GROWTH
    row["passed"] = not bad and bool(got) and one.request("GET", "/healthz")[0] == 200
    print(json.dumps(row, ensure_ascii=False), flush=True)
    return row


def files_around(one: Service) -> set[str]:
    """The files beside the model folder, above it and in the working folder."""
    inside = one.model.parent
    return {str(path) for folder in (Path(), inside, inside.parent) for path in folder.iterdir()}


def watched(
    one: Service, doing: Callable[[], None], samples: int = SAMPLES
) -> tuple[list[float], Counter[str]]:
    """Times and other outcomes of a healthy client while something is done, as often as needed."""
    healthy, end = Healthy(one.port), time.monotonic() + 120
    doing()
    while healthy.answered.value < samples and time.monotonic() < end:
        doing()
    return healthy.end()


def sample(one: Service, most: list[int], stopped: threading.Event) -> None:
    while not stopped.wait(0.02):
        most[0] = max(most[0], one.memory())


def writers(model: Path, seconds: float, count: int = 8) -> dict[str, Any]:
    """Add and remove labels in several threads; afterwards every acknowledged write must be there."""
    acknowledged: list[set[str]] = [set() for _ in range(count)]
    answers: Counter[int] = Counter()

    def write(one: Service, which: int) -> None:
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            id = f"abuse-{which}-{number}"
            status, _ = one.request("POST", "/v1/labels", {"labels": [{"id": id, "texts": [id]}]})
            answers[status] += 1
            if status == 201:
                acknowledged[which].add(id)
            if number % 3 == 0 and acknowledged[which]:
                gone = random.choice(sorted(acknowledged[which]))
                status, _ = one.request("DELETE", f"/v1/labels/{gone}")
                answers[status] += 1
                if status == 200:
                    acknowledged[which].discard(gone)

    with service(model) as one:
        threads = [threading.Thread(target=write, args=(one, which)) for which in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = set().union(*acknowledged)
        differ = len(stored(one) ^ expected)
    return {"attack": f"{count} writers", "sent": answers.total(), "answers": dict(answers), "lost": differ,
            "passed": differ == 0 and answers[200] > 0 and answers[201] > 0}  # fmt: skip


def stored(one: Service) -> set[str]:
    """The labels of this script that the service has."""
    found: set[str] = set()
    while True:
        page = json.loads(one.request("GET", f"/v1/labels?q=abuse-&limit=500&offset={len(found)}")[1])
        found |= {label["id"] for label in page["labels"]}
        if not page["labels"] or len(found) >= page["total"]:
            return found


def kills(model: Path, count: int) -> dict[str, Any]:
    """Kill the service with SIGKILL while it is written to; every acknowledged write must be there later.

    Each kill comes up to 0.3 s after the first acknowledged write of its service.
    """
    lost = killed = 0
    expected: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="mufin-kills-") as folder:
        copied = Path(shutil.copytree(model, Path(folder, "model")))
        for number in range(count):
            one = Service(copied)
            lost += len(expected - stored(one))
            timer = threading.Timer(random.uniform(0, 0.3), one.process.kill)
            with suppress(OSError, http.client.HTTPException):
                for write in range(10_000):
                    id = f"abuse-{number}-{write}"
                    status, _ = one.request("POST", "/v1/labels", {"labels": [{"id": id, "texts": [id]}]})
                    if status == 201:
                        expected.add(id)
                        if timer.ident is None:
                            timer.start()
            if timer.ident is None:
                one.process.kill()  # no write was acknowledged
            else:
                timer.join()
                killed += 1
            one.process.wait()
        one = Service(copied)
        lost += len(expected - stored(one))
        one.stop()
    return {"attack": f"kill −9, {count} times", "kills after a write": killed, "sent": len(expected),
            "lost": lost, "passed": lost == 0 and killed == count}  # fmt: skip


def token(model: Path, trials: int) -> dict[str, Any]:
    """Compare the times of refusals of tokens that are wrong from the start, or only in the last letter.

    Interleaved at random. The statistic is Welch's t of the faster half, where the noise is least; with
    |t| < 4.5, the limit of TVLA, the times tell nothing.
    """
    guesses = {"first": "x" * len(TOKEN), "last": TOKEN[:-1] + "x", "short": "x"}
    times: dict[str, list[float]] = {name: [] for name in guesses}
    label = json.dumps({"labels": [{"id": "a", "texts": ["a"]}]})
    with service(model, TOKEN) as one:
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=30)
        headers = {"Content-Type": "application/json"}
        for number in range(trials + 200):
            order = random.sample([*guesses], len(guesses))
            for name in order:
                secret = {"Authorization": f"Bearer {guesses[name]}"}
                started = time.perf_counter_ns()
                connection.request("POST", "/v1/labels", label, {**headers, **secret})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 401:
                    raise SystemExit(f"{answer.status} for a wrong token")
                if number >= 200:  # warm
                    times[name].append((time.perf_counter_ns() - started) / 1e3)
        right = one.request("DELETE", "/v1/labels/nobody", None, Authorization=f"Bearer {TOKEN}")[0]
    fast = {name: sorted(some)[: len(some) // 2] for name, some in times.items()}
    t = {name: round(welch(fast["last"], fast[name]), 2) for name in ("first", "short")}
    middle = {name: round(statistics.median(some), 1) for name, some in times.items()}
    return {
        "attack": "token, by timing", "sent": 3 * trials, "median µs": middle, "t": t,
        "passed": right == 404 and all(abs(value) < 4.5 for value in t.values()),
    }  # fmt: skip


def welch(a: list[float], b: list[float]) -> float:
    spread = statistics.variance(a) / len(a) + statistics.variance(b) / len(b)
    return float((statistics.mean(a) - statistics.mean(b)) / spread**0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=Path("runs/demo"))
    parser.add_argument("--seconds", type=float, default=DEADLINE, help="of each attack at least")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--trials", type=int, default=5000, help="of each wrong token")
    parser.add_argument("--only", help="attacks, writers, kills, token, or the start of an attack's name")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    rows = attacks(options.model, options.seconds, options.only)
    others: dict[str, Callable[[], dict[str, Any]]] = {
        "writers": lambda: writers(options.model, options.seconds),
        "kills": lambda: kills(options.model, options.kills),
        "token": lambda: token(options.model, options.trials),
    }
    for name, run in others.items():
        if options.only in (None, name):
            rows.append(run())
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    if not rows:
        parser.error(f"--only {options.only} is no attack")
    failed = [row["attack"] for row in rows if not row["passed"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} passed", *failed, sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
