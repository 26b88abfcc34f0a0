"""Two replicas behind nginx: reload models under load, then kill a replica; count lost requests.

    python benchmarks/deploy.py runs/one runs/two --requests 20000

The models take turns behind a link, which both replicas watch. nginx comes from the system (Debian:
nginx-light) and reads deploy/nginx.conf with the replicas' ports. Everything listens on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PORT = 18080
BODY = json.dumps({"items": [{"texts": ["red bag"]}], "k": 5})


class Replica:
    """`mufin serve --watch` on a port of its own."""

    def __init__(self, link: Path) -> None:
        command = [sys.executable, "-m", "mufin", "serve", str(link), "--port", "0", "--watch"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.match(r"Open\s+http://127.0.0.1:(\d+)/", line):
                self.port = int(found[1])
                return
        raise SystemExit("a replica did not start")


@contextmanager
def balancer(ports: list[int], folder: Path) -> Iterator[None]:
    """Run nginx with the configuration of deploy/ in front of these ports."""
    text = (ROOT / "deploy" / "nginx.conf").read_text("utf-8")
    servers = "\n".join(f"        server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;" for port in ports)
    text = re.sub(r" +server mufin:8000[^\n]*", servers, text)
    text = text.replace("listen 8080", f"listen 127.0.0.1:{PORT}").replace("/tmp/nginx", f"{folder}/nginx")
    (folder / "nginx.conf").write_text(text, "utf-8")
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    process = subprocess.Popen(
        [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    )
    time.sleep(1)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


class Load:
    """Clients that ask until there were so many requests."""

    def __init__(self, requests: int, clients: int) -> None:
        self.left, self.lock = requests, threading.Lock()
        self.status: Counter[str] = Counter()
        self.models: set[str] = set()
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
        while True:
            with self.lock:
                if self.left <= 0:
                    return
                self.left -= 1
            try:
                headers = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/recommend", BODY, headers)
                answer = connection.getresponse()
                found = json.loads(answer.read())
                self.status[str(answer.status)] += 1
                if answer.status == 200:
                    self.models.add(found["model"])
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.status[type(error).__name__] += 1
                connection.close()

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self.threads:
            thread.join()


def point(link: Path, folder: Path) -> None:
    """Point the link to a folder, in one step."""
    fresh = link.with_name("fresh")
    fresh.symlink_to(folder.resolve())
    fresh.replace(link)


def study(models: list[Path], requests: int, clients: int, every: float, folder: Path) -> dict[str, object]:
    """Reload under load, then kill a replica under load."""
    link = folder / "current"
    point(link, models[0])
    replicas = [Replica(link) for _ in range(2)]
    try:
        with balancer([replica.port for replica in replicas], folder):
            started, swaps = time.monotonic(), 0
            with Load(requests, clients) as load:
                while load.left > 0:
                    time.sleep(every)
                    swaps += 1
                    point(link, models[swaps % len(models)])
            seconds = time.monotonic() - started
            with Load(requests // 10, clients) as after:
                time.sleep(0.5)
                replicas[0].process.kill()
            return {
                "requests": load.status.total(), "by status": dict(load.status), "swaps of the link": swaps,
                "models that answered": len(load.models), "requests per second": round(requests / seconds, 1),
                "while a replica is killed": dict(after.status),
            }  # fmt: skip
    finally:
        for replica in replicas:
            replica.process.kill()
            replica.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+", help="two model folders")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two swaps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = study(options.models, options.requests, options.clients, options.every, Path(folder))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
