"""Download many images: workers, retries, robots.txt; keep only what is an image."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.robotparser import RobotFileParser

from mufin.data.download.addresses import Failure, Settings, parse
from mufin.data.download.download import Downloader
from mufin.data.download.hosts import Hosts
from mufin.data.images import open_picture, suffix_of
from mufin.data.write import save_picture
from mufin.errors import PictureError

ROBOTS = 500_000  # maximum bytes of a robots.txt
AGENT = "mufin"

Outcome = Callable[[str, str | Failure], None]  # address; file within the folder, or failure


def fetch_all(urls: Iterable[str], folder: Path, settings: Settings, outcome: Outcome) -> None:
    """Download images into images/ of the folder; call `outcome` for each, from one thread at a time."""
    (folder / "images").mkdir(exist_ok=True)
    hosts = Hosts(settings.per_host)
    for url in urls:
        hosts.add(url)
    with Downloader(settings) as downloader:
        crew = _Crew(downloader, hosts, folder, settings, outcome)
        size = max(1, min(settings.workers, hosts.open))
        threads = [threading.Thread(target=crew.work, name=f"mufin-fetch-{i}") for i in range(size)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:  # Ctrl-C: finish running downloads, start no new ones
            hosts.stop()
            for thread in threads:
                thread.join()
    if crew.error is not None:
        raise crew.error


class _Crew:
    """The state that workers share."""

    def __init__(
        self, downloader: Downloader, hosts: Hosts, folder: Path, settings: Settings, outcome: Outcome
    ) -> None:
        self.downloader, self.hosts, self.folder = downloader, hosts, folder
        self.settings, self.outcome = settings, outcome
        self.lock = threading.Lock()
        self.rules: dict[str, RobotFileParser | None] = {}
        self.asking: dict[str, threading.Lock] = {}
        self.error: BaseException | None = None

    def work(self) -> None:
        """Download until the queue is empty."""
        try:
            while (taken := self.hosts.next()) is not None:
                self._one(*taken)
        except BaseException as error:  # a full disk, for example: stop all workers and raise it below
            self.error = error
            self.hosts.stop()

    def _one(self, url: str, tries: int) -> None:
        try:
            self._allowed(url)
            result: str | Failure = save_picture(checked_image(self.downloader.fetch(url)), self.folder)
        except Failure as failure:
            if failure.passing and tries < self.settings.retries:
                self.hosts.again(url, tries + 1, self._wait(failure, tries), failure.wait is not None)
                return
            result = failure
        with self.lock:
            self.outcome(url, result)
        self.hosts.done(url)

    def _wait(self, failure: Failure, tries: int) -> float:
        """Return what the host asked for, or else exponential backoff with jitter."""
        if failure.wait is not None:
            return min(failure.wait, self.settings.longest_wait)
        wait = min(self.settings.wait * 2.0**tries, self.settings.longest_wait)
        return wait * random.uniform(0.75, 1.25)

    def _allowed(self, url: str) -> None:
        """Raise a Failure if robots.txt of the host forbids the address."""
        if not self.settings.robots:
            return
        site = parse(url)
        root = f"{site.scheme}://{site.netloc}"
        with self.lock:
            asking = self.asking.setdefault(root, threading.Lock())
        with asking:
            if root not in self.rules:
                self.rules[root] = self._robots(root)
                rules = self.rules[root]
                pause = None if rules is None else rules.crawl_delay(AGENT)
                self.hosts.pace(url, min(float(pause or 0), self.settings.longest_wait))
        rules = self.rules[root]
        if rules is not None and not rules.can_fetch(AGENT, url):
            raise Failure("forbidden by robots.txt")

    def _robots(self, root: str) -> RobotFileParser | None:
        """Return the rules of a site, or None if it has no robots.txt."""
        try:
            text = self.downloader.fetch(f"{root}/robots.txt", ROBOTS)
        except Failure as failure:
            if failure.passing:  # no answer is no permission
                raise
            return None
        rules = RobotFileParser()
        rules.parse(text.decode("utf-8", "replace").splitlines())
        return rules


def checked_image(encoded: bytes) -> bytes:
    """Return the bytes if they are an image that can be decoded; raise a Failure if not."""
    if not encoded:
        raise Failure("empty")
    if suffix_of(encoded) == ".bin":  # Pillow would try other formats, some of which are programs
        raise Failure("not an image (PNG, JPEG, GIF, WebP, BMP or TIFF)")
    try:
        open_picture(encoded, 64)
    except PictureError as error:
        raise Failure(str(error).split(": ", 1)[-1].split(";")[0]) from None
    return encoded
