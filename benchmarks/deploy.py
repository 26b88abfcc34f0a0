"""Two replicas behind nginx: reload models under load, then kill a replica; count lost requests.

    python benchmarks/deploy.py runs/one runs/two --requests 20000

Copies of the models take turns behind a link, which both replicas watch. While a replica is killed, other
clients add labels: those that were confirmed must be in the other replica. nginx comes from the system
(Debian: nginx-light) and reads deploy/nginx.conf with the replicas' ports. Everything listens on 127.0.0.1.
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
import urllib.request
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
    """Clients that send queries, or labels to add, until there were so many requests."""

    def __init__(self, requests: int, clients: int, adds_labels: bool = False) -> None:
        self.left, self.lock, self.adds_labels = requests, threading.Lock(), adds_labels
        self.status: Counter[str] = Counter()
        self.models: set[str] = set()
        self.added: set[str] = set()
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
        while True:
            with self.lock:
                if self.left <= 0:
                    return
                self.left -= 1
                id = f"deploy-{self.left}"
            label = json.dumps({"labels": [{"id": id, "texts": [id]}]})
            path, body = ("/v1/labels", label) if self.adds_labels else ("/v1/recommend", BODY)
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = answer.read()
                self.status[str(answer.status)] += 1
                if answer.status == 200:
                    self.models.add(json.loads(content)["model"])
                elif answer.status == 201:
                    self.added.add(id)
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


def labels_of(port: int) -> set[str]:
    """Return the added labels that a replica has."""
    url = f"http://127.0.0.1:{port}/v1/labels?q=deploy-&limit=500"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return {label["id"] for label in json.load(answer)["labels"]}


def study(given: list[Path], requests: int, clients: int, every: float, folder: Path) -> dict[str, object]:
    """Reload under load, then kill a replica under load."""
    models = [shutil.copytree(model, folder / str(number)) for number, model in enumerate(given)]
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
            time.sleep(every)  # both replicas load the last model; until then writes are refused (409)
            with Load(requests // 10, clients) as after, Load(requests // 100, clients, True) as writes:
                time.sleep(2)
                replicas[0].process.kill()
            time.sleep(3)  # the other one looks every second
            return {
                "requests": load.status.total(), "by status": dict(load.status), "swaps of the link": swaps,
                "models that answered": len(load.models), "requests per second": round(requests / seconds, 1),
                "queries while a replica is killed": dict(after.status),
                "labels added meanwhile": dict(writes.status),
                "confirmed labels lost": len(writes.added - labels_of(replicas[1].port)),
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
