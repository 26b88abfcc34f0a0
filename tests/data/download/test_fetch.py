"""Downloads from a real server that does what servers do."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mufin.cli import main
from mufin.data.catalogue import Catalogue
from mufin.data.download.addresses import Failure, Settings, is_public, parse, resolve
from mufin.data.download.catalogue import Fetched, fetch_folder
from mufin.data.formats import jsonl


def _module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("picture_server", Path(__file__).with_name("server.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _module()
QUICK = {"timeout": 2.0, "wait": 0.05, "allow_private": True, "retries": 1}


@pytest.fixture
def server() -> Iterator[Any]:
    with made.serving() as running:
        yield running


def shop(folder: Path, *urls: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    jsonl.write(
        ({"id": f"p{i}", "title": f"thing {i}", "image_urls": row} for i, row in enumerate(urls)),
        folder / "items.jsonl",
    )
    return folder


def fetch(folder: Path, **changes: Any) -> Fetched:
    return fetch_folder(folder, Settings(**(QUICK | changes)))


def reason(tmp_path: Path, url: str, **changes: Any) -> str:
    """Why an address cannot be fetched."""
    done = fetch(shop(tmp_path / "one", [url]), **changes)
    assert done.fetched == 0
    return done.failed[url]


def test_pictures_come_in_order_under_the_name_of_their_content(server: Any, tmp_path: Path) -> None:
    urls = [f"{server.url}/ok/{i}.png" for i in (1, 2, 1)]
    folder = shop(tmp_path / "shop", urls, [], urls[1:2])
    done = fetch(folder)
    assert (done.wanted, done.fetched, done.kept, done.failed) == (2, 2, 0, {})
    items = Catalogue.read(folder).items
    first, second = (hashlib.sha256(made.png(i)).hexdigest()[:32] for i in (1, 2))
    assert [path.stem for path in items[0].images] == [first, second]
    assert items[0].images[0].read_bytes() == made.png(1)
    assert [len(item.images) for item in items] == [2, 0, 1]
    assert server.asked["/ok/1.png"] == 1


def test_a_second_run_fetches_nothing_again(server: Any, tmp_path: Path) -> None:
    folder = shop(tmp_path / "shop", [f"{server.url}/ok/1.png", f"{server.url}/missing"])
    fetch(folder)
    before = Catalogue.read(folder).items[0]
    done = fetch(folder)
    assert (done.fetched, done.kept, len(done.failed)) == (0, 1, 1)
    assert server.asked == {"/ok/1.png": 1, "/missing": 1}
    assert Catalogue.read(folder).items[0] == before
    fetch_folder(folder, Settings(**QUICK), retry_failed=True)
    assert server.asked["/missing"] == 2


def test_pictures_that_were_there_stay(server: Any, tmp_path: Path) -> None:
    from mufin.data.item import Item
    from mufin.data.items import Items

    items = Items.of([Item("a", ["desk"], [made.png(9)]), Item("b", ["lamp"])])
    import pyarrow as pa

    urls = pa.array([[f"{server.url}/ok/1.png"], []])
    Catalogue(Items(items.table.append_column("image_urls", urls), items.pictures)).write(tmp_path / "shop")
    assert fetch(tmp_path / "shop").fetched == 1
    pictures = Catalogue.read(tmp_path / "shop").items[0].images
    assert [path.read_bytes() for path in pictures] == [made.png(9), made.png(1)]


@pytest.mark.parametrize(
    ("path", "expected", "changes"),
    [
        ("missing", "HTTP 404", {}),
        ("broken", "", {}),
        ("garbage", "not HTTP", {}),
        ("loop", "more than 5 redirects", {}),
        ("long", "cut short", {}),
        ("short", "damaged or cut short", {}),
        ("html-as-picture", "not an image", {}),
        ("huge_said", "bigger than", {}),
        ("huge_endless", "bigger than 100,000 bytes", {"max_bytes": 100_000}),
        ("bomb", "too many pixels", {}),
        ("postscript", "not an image", {}),
        ("empty", "empty", {}),
        ("redirect?to=file:///etc/passwd", "scheme 'file' is not supported", {}),
        ("redirect?to=//user:secret@example.com/x.png", "password", {}),
    ],
)
def test_what_servers_do(
    server: Any, tmp_path: Path, path: str, expected: str, changes: dict[str, Any]
) -> None:
    start = time.monotonic()
    assert expected in reason(tmp_path, f"{server.url}/{path}", **changes)
    assert time.monotonic() - start < 5
    listed = [json.loads(line) for line in (tmp_path / "one" / "_failed.jsonl").read_text().splitlines()]
    assert listed[0]["url"] == f"{server.url}/{path}"
    assert not list((tmp_path / "one" / "images").iterdir())


@pytest.mark.parametrize(
    "kind",
    ["", "_close", "_unsized", "_old", "_old_sized", "_chunked", "_error", "_moved", "_continue", "_head"],
)
def test_a_host_that_drips_is_left_at_the_deadline(server: Any, tmp_path: Path, kind: str) -> None:
    start = time.monotonic()
    assert reason(tmp_path, f"{server.url}/dribble{kind}", timeout=0.6, retries=0) == "took too long"
    assert 0.5 < time.monotonic() - start < 2.5
    assert server.asked == {f"/dribble{kind}": 1}


def test_redirects_share_one_deadline(server: Any, tmp_path: Path) -> None:
    start = time.monotonic()
    slow = f"{server.url}/redirect?to=/redirect?to=/dribble_close"
    assert reason(tmp_path, slow, timeout=0.6, retries=0) == "took too long"
    assert time.monotonic() - start < 2.5


def test_a_kept_connection_has_the_deadline_of_its_next_image(server: Any) -> None:
    from mufin.data.download.download import Downloader

    with Downloader(Settings(**(QUICK | {"timeout": 1.0}))) as downloader:
        assert downloader.fetch(f"{server.url}/ok/1.png") == made.png(1)
        time.sleep(1.1)
        assert downloader.fetch(f"{server.url}/ok/2.png") == made.png(2)
        start = time.monotonic()
        with pytest.raises(Failure, match="took too long"):
            downloader.fetch(f"{server.url}/dribble_old")
        assert time.monotonic() - start < 2.5


def test_a_kept_connection_that_the_host_closed_is_opened_again(server: Any) -> None:
    from mufin.data.download.download import Downloader

    with Downloader(Settings(**QUICK)) as downloader:
        assert downloader.fetch(f"{server.url}/ok/1.png") == made.png(1)
        assert downloader.fetch(f"{server.url}/fickle/2.png") == made.png(2)
        assert server.asked["/fickle/2.png"] == 2
        with pytest.raises(Failure):  # on a new connection, the first failure counts
            downloader.fetch(f"{server.url}/broken")
        assert server.asked["/broken"] == 2


def test_short_errors_and_redirects_keep_the_connection(server: Any) -> None:
    from mufin.data.download.download import Downloader

    with Downloader(Settings(**QUICK)) as downloader:
        for _ in range(2):
            with pytest.raises(Failure, match="HTTP 404"):
                downloader.fetch(f"{server.url}/missing")
        assert downloader.fetch(f"{server.url}/redirect?to=/ok/1.png") == made.png(1)
        (connection,) = downloader.pool.connections
        assert "Request Count: 4" in connection.info()


def test_a_handshake_that_drips_is_left_at_the_deadline(tmp_path: Path) -> None:
    start = time.monotonic()
    with made.dripping() as port:
        assert reason(tmp_path, f"https://127.0.0.1:{port}/a.png", timeout=0.6, retries=0) == "took too long"
        assert 0.5 < time.monotonic() - start < 2.5


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mufin.data.download.download import Downloader

    with made.serving(tls=True) as server:
        refused = reason(tmp_path, f"{server.url}/ok/1.png")
        assert refused.startswith("certificate not valid: self-signed certificate")
        monkeypatch.setenv("SSL_CERT_FILE", str(made.CERTIFICATE))
        with Downloader(Settings(**(QUICK | {"timeout": 1.0}))) as downloader:
            for i in (1, 2):
                assert downloader.fetch(f"{server.url}/ok/{i}.png") == made.png(i)
            for path in ("dribble", "dribble_close"):
                start = time.monotonic()
                with pytest.raises(Failure, match="took too long"):
                    downloader.fetch(f"{server.url}/{path}")
                assert time.monotonic() - start < 2.5


def test_a_name_that_is_looked_up_for_ever_is_left_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = threading.Event()
    monkeypatch.setattr(
        "mufin.data.download.addresses.socket.getaddrinfo", lambda *_, **__: found.wait(10) or []
    )
    start = time.monotonic()
    try:
        assert "took too long" in reason(tmp_path, "http://slow.example/a.png", timeout=0.6, retries=0)
    finally:
        found.set()
    assert 0.5 < time.monotonic() - start < 2.5


def test_what_is_a_picture_whatever_it_is_called(server: Any, tmp_path: Path) -> None:
    urls = [f"{server.url}/picture-as-html", f"{server.url}/redirect?to=/redirect?to=/ok/5.png"]
    assert fetch(shop(tmp_path / "shop", urls)).fetched == 2


def test_failures_that_pass_are_tried_again(server: Any, tmp_path: Path) -> None:
    start = time.monotonic()
    done = fetch(
        shop(tmp_path / "shop", [f"{server.url}/flaky/1.png", f"{server.url}/patience/2.png"]), retries=3
    )
    assert done.fetched == 2
    assert server.asked == {"/flaky/1.png": 3, "/patience/2.png": 2}
    assert time.monotonic() - start >= 1  # Retry-After


def test_only_so_many_at_a_time_from_a_host(server: Any, tmp_path: Path) -> None:
    urls = [f"{server.url}/slow/{i}.png" for i in range(9)]
    assert fetch(shop(tmp_path / "shop", urls), workers=16, per_host=3).fetched == 9
    assert server.most == 3


def test_robots(server: Any, tmp_path: Path) -> None:
    done = fetch(shop(tmp_path / "shop", [f"{server.url}/slow/1.png", f"{server.url}/ok/1.png"]), robots=True)
    assert list(done.failed.values()) == ["forbidden by robots.txt"]
    assert server.asked == {"/robots.txt": 1, "/ok/1.png": 1}


def test_private_addresses_are_refused_also_after_a_redirect(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = server.server_port
    for host in ("127.0.0.1", "localhost", "0", "[::1]", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
        assert "refused" in reason(tmp_path, f"http://{host}:{port}/ok/1.png", allow_private=False)
    assert not server.asked

    # A public name that redirects inside: the first host is let through, as if it were public.
    public = is_public
    answers = iter([True])
    monkeypatch.setattr("mufin.data.download.addresses.is_public", lambda text: next(answers, False))
    found = reason(
        tmp_path / "..", f"{server.url}/redirect?to=http://localhost:{port}/ok/1.png", allow_private=False
    )
    assert "refused: localhost" in found
    assert list(server.asked) == ["/redirect"]
    assert not public("10.1.2.3")


def test_a_name_that_changes_its_address_is_not_followed(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the second look-up would lead inside, so there must be none."""
    from mufin.data.download.download import Downloader

    looked = []

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        looked.append(host)
        address = "93.184.216.34" if len(looked) == 1 else "127.0.0.1"
        return [(2, 1, 6, "", (address, port))]

    dialled = []

    def dial(address: tuple[str, int], timeout: float, source_address: None = None) -> Any:
        dialled.append(address[0])
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr("mufin.data.download.addresses.socket.getaddrinfo", look_up)
    monkeypatch.setattr("socket.create_connection", dial)
    with Downloader(Settings()) as downloader, pytest.raises(Failure, match="connection failed"):
        downloader.fetch(f"http://rebind.example.com:{server.server_port}/ok/1.png")
    assert dialled == ["93.184.216.34"]
    with Downloader(Settings()) as downloader, pytest.raises(Failure, match="refused: rebind"):
        downloader.fetch("http://rebind.example.com/")


def test_addresses() -> None:
    target = parse("HTTP://Bücher.example:8080/a b/ü.png?x=1#part")
    assert target.url == "http://xn--bcher-kva.example:8080/a%20b/%C3%BC.png?x=1"
    for wrong in (
        "ftp://a/b",
        "file:///etc/passwd",
        "//a/b",
        "a.png",
        "http://",
        "http://[::1",
        "http://a:99999/",
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://127.0.0%2e1/",
        "data:x",
        "http://a/" + "b" * 8000,
    ):
        with pytest.raises(Failure):
            parse(wrong)
    with pytest.raises(Failure, match="not found"):
        resolve("nowhere.invalid", 80, allow_private=True)


def test_a_killed_run_goes_on(server: Any, tmp_path: Path) -> None:
    urls = [f"{server.url}/slow/{i}.png" for i in range(24)]
    folder = shop(tmp_path / "shop", *([url] for url in urls))
    command = [
        sys.executable,
        "-m",
        "mufin",
        "fetch-images",
        str(folder),
        "--allow-private",
        "--per-host",
        "4",
    ]
    source = str(Path(__file__).resolve().parents[3] / "src")
    process = subprocess.Popen([*command, "--quiet"], env=os.environ | {"PYTHONPATH": source})
    while sum(server.asked.values()) < 10 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with (folder / "_fetched.jsonl").open("a") as file:
        file.write('{"url": "http://torn')  # a line that was being written
    before = sum(server.asked.values())
    done = fetch(folder, per_host=8)
    assert done.kept >= 4
    assert done.fetched + done.kept == 24
    assert sum(server.asked.values()) - before == done.fetched
    assert all(len(item.images) == 1 for item in Catalogue.read(folder).items)
    assert not list((folder / "images").glob(".*.tmp"))


def test_the_command(server: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shop(tmp_path / "shop", [f"{server.url}/ok/1.png", f"{server.url}/missing"])
    assert main(["fetch-images", str(folder), "--allow-private", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["fetched"], found["failed"], found["reasons"]) == (1, 1, {"HTTP 404": 1})
    assert main(["fetch-images", str(folder), "--allow-private", "-q"]) == 0
    out = capsys.readouterr().out
    assert "HTTP 404 (1)" in out
    assert "1 already there" in out
    (folder / "items.jsonl").write_text('{"id": "a", "title": "b"}\n')
    assert main(["fetch-images", str(folder)]) == 2
    assert "nothing to fetch" in capsys.readouterr().err
    assert main(["fetch-images", str(folder), "--workers", "0"]) == 2
