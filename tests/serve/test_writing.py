"""Labels come and go over HTTP: at once, for good, and never half."""

from __future__ import annotations

import json
import resource
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from made import picture
from mufin import Item, Mufin, load, save
from mufin.files import lock
from mufin.model.store import editing_labels
from serving import Process, base64_of, encoded

if TYPE_CHECKING:
    from starlette.testclient import TestClient

ZEBRA = {"id": "zebra/1", "texts": ["zebra crossing"]}


def hits(client: TestClient, text: str, k: int = 3) -> list[str]:
    answer = client.post("/v1/recommend", json={"items": [{"texts": [text]}], "k": k})
    assert answer.status_code == 200, answer.text
    return [hit["label"] for hit in answer.json()["results"][0]["hits"]]


def test_a_new_label_is_found_at_once_and_after_a_restart(writing: TestClient, model_folder: Path) -> None:
    before = writing.get("/v1/model").json()
    made = writing.post(
        "/v1/labels", json={"labels": [{**ZEBRA, "images": [base64_of(picture("red", "bar"))]}]}
    )
    assert made.status_code == 201, made.text
    assert made.json()["added"] == ["zebra/1"]
    assert made.json()["model"] != before["model"]
    assert "zebra/1" in hits(writing, "zebra crossing")
    assert "zebra/1" in [
        hit.label for hit in load(model_folder).recommend(Item(texts=["zebra crossing"]), k=3)
    ]
    shown = writing.get("/v1/labels/zebra/1").json()
    assert (shown["texts"], shown["images"], shown["added"], shown["alpha"]) == (
        ["zebra crossing"],
        1,
        True,
        1.0,
    )
    small = writing.get("/v1/labels/zebra/1/image/0")
    assert small.headers["content-type"] == "image/webp"

    gone = writing.request("DELETE", "/v1/labels", json={"ids": ["zebra/1"]})
    assert gone.json()["removed"] == ["zebra/1"]
    assert "zebra/1" not in hits(writing, "zebra crossing", 50)
    assert writing.get("/v1/labels/zebra/1").status_code == 404
    assert "zebra/1" not in load(model_folder).labels.items.ids.to_pylist()
    assert writing.post("/v1/labels", json={"labels": [ZEBRA]}).status_code == 201, "an id may come again"
    assert writing.delete("/v1/labels/zebra/1").status_code == 200


@pytest.mark.parametrize("id", ["two\nlines", "\n", "a\r\nb/c\n"])
def test_ids_with_line_breaks_are_found_by_path(writing: TestClient, id: str) -> None:
    from urllib.parse import quote

    label = {"id": id, "texts": ["zebra"], "images": [base64_of(picture("red", "bar"))]}
    assert writing.post("/v1/labels", json={"labels": [label]}).status_code == 201
    path = f"/v1/labels/{quote(id, safe='')}"
    assert writing.get(path).json()["id"] == id
    assert writing.get(f"{path}/image/0").headers["content-type"].startswith("image/")
    assert writing.delete(path).json()["removed"] == [id]
    assert writing.get(path).status_code == 404


def test_pictures_of_labels_are_asked_for_again(writing: TestClient) -> None:
    """An id may be given to another label at any time: a browser must not show the old picture."""

    def put(colour: str) -> Any:
        label = {**ZEBRA, "images": [base64_of(picture(colour, "bar"))]}
        assert writing.post("/v1/labels", json={"labels": [label]}).status_code == 201
        return writing.get("/v1/labels/zebra/1/image/0")

    first = put("red")
    assert first.headers["cache-control"] == "no-cache"
    known = {"If-None-Match": first.headers["etag"]}
    assert writing.get("/v1/labels/zebra/1/image/0", headers=known).status_code == 304
    writing.delete("/v1/labels/zebra/1")
    second = put("blue")
    assert writing.get("/v1/labels/zebra/1/image/0", headers=known).content == second.content != first.content


def test_what_cannot_be_written(writing: TestClient) -> None:
    def status(**label: Any) -> int:
        return writing.post("/v1/labels", json={"labels": [label]}).status_code

    assert status(id="q-red", texts=["red again"]) == 409
    assert status(id="new", texts=[]) == 422
    assert status(id="", texts=["x"]) == 422
    assert status(id="new", texts=["x"], images=["no picture"]) == 422
    twice = writing.post("/v1/labels", json={"labels": [ZEBRA, ZEBRA]})
    assert twice.status_code == 409
    assert writing.delete("/v1/labels/nobody").status_code == 404
    assert writing.request("DELETE", "/v1/labels", json={"ids": ["q-red", "nobody"]}).status_code == 404
    assert "q-red" in hits(writing, "red", 50), "half of a wrong call was done"


def test_examples_vote_at_once(writing: TestClient, model_folder: Path) -> None:
    before = writing.get("/v1/model").json()["memory"]
    body = {
        "items": [{"texts": ["unheard of"], "images": [base64_of(picture("blue", "bar"))]}],
        "labels": [["q-bar"]],
    }
    assert writing.post("/v1/examples", json=body).json()["added"] == 1
    assert writing.get("/v1/model").json()["memory"] == before + 1 == len(load(model_folder).points)
    ask = {"items": [{"texts": ["unheard of"]}], "k": 50}
    found = {h["label"]: h for h in writing.post("/v1/recommend", json=ask).json()["results"][0]["hits"]}
    assert found["q-bar"]["evidence"]["memory"] > 0
    for wrong in ({**body, "labels": [["q-bar"], ["q-red"]]}, {**body, "labels": [["nobody"]]}):
        assert writing.post("/v1/examples", json=wrong).status_code == 422


def test_what_another_program_wrote_is_taken_over(writing: TestClient, model_folder: Path) -> None:
    """A command removes a label and adds one: the next write of the service keeps both, and serves them."""
    with editing_labels(model_folder) as other:
        other.remove_labels("q-bar")
        other.add_labels(Item("okapi", ["okapi"]))
    assert writing.post("/v1/labels", json={"labels": [{"id": "okapi", "texts": ["x"]}]}).status_code == 409
    assert writing.delete("/v1/labels/q-bar").status_code == 404
    assert writing.post("/v1/labels", json={"labels": [ZEBRA]}).status_code == 201
    there = load(model_folder).labels.items.ids.to_pylist()
    assert {"okapi", "zebra/1"} <= {*there}
    assert "q-bar" not in there
    assert "okapi" in hits(writing, "okapi", 50)
    assert "q-bar" not in hits(writing, "bar", 50)


def test_another_model_in_the_folder_is_not_overwritten(
    writing: TestClient, model_folder: Path, tiny_model: Mufin
) -> None:
    save(tiny_model, model_folder)
    refused = writing.post("/v1/labels", json={"labels": [ZEBRA]})
    assert refused.status_code == 409
    assert "reload the service (POST /v1/reload)" in refused.json()["detail"]
    assert "zebra/1" not in load(model_folder).labels.items.ids.to_pylist()


def test_a_folder_that_another_program_writes_to(
    writing: TestClient, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mufin.serve.live.PATIENCE", 0.05)
    with lock.writing(model_folder):
        refused = writing.post("/v1/labels", json={"labels": [ZEBRA]})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert "zebra/1" not in hits(writing, "zebra crossing", 50)
    assert writing.post("/v1/labels", json={"labels": [ZEBRA]}).status_code == 201


@pytest.mark.parametrize("room", [0, 100, 1000, 3000], ids=lambda room: f"{room} bytes")
def test_a_disk_that_is_full(writing: TestClient, model_folder: Path, room: int) -> None:
    """Whichever library meets the end of the disk first: nothing is changed, and the answer says so."""
    before = {path: path.read_bytes() for path in model_folder.rglob("*") if path.is_file()}
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, old[1]))  # as a full disk: writes fail beyond it
    try:
        refused = writing.post("/v1/labels", json={"labels": [ZEBRA]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert refused.status_code == 503, refused.text
    assert str(model_folder) not in refused.text
    assert "zebra/1" not in hits(writing, "zebra crossing", 50)
    assert {path: path.read_bytes() for path in model_folder.rglob("*") if path.is_file()} == before
    assert writing.post("/v1/labels", json={"labels": [ZEBRA]}).status_code == 201


def test_readers_see_the_old_labels_or_the_new(writing: TestClient) -> None:
    """Pairs come and go together while eight readers look: whoever sees one of a pair sees both."""
    pair = [{"id": f"twin-{n}", "texts": ["a pair of twins"]} for n in (1, 2)]
    stop = threading.Event()

    def read() -> set[tuple[str, frozenset[str]]]:
        seen = set()
        while not stop.is_set():
            ask = {"items": [{"texts": ["a pair of twins"]}], "k": 50}
            answer = writing.post("/v1/recommend", json=ask).json()
            found = [hit["label"] for hit in answer["results"][0]["hits"]]
            assert len(found) in (7, 9)
            seen.add((answer["model"], frozenset(label for label in found if label.startswith("twin"))))
        return seen

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read) for _ in range(8)]
        for _ in range(5):
            assert writing.post("/v1/labels", json={"labels": pair}).status_code == 201
            assert (
                writing.request("DELETE", "/v1/labels", json={"ids": ["twin-1", "twin-2"]}).status_code == 200
            )
        stop.set()
        seen = set().union(*(reader.result() for reader in readers))
    assert {labels for _, labels in seen} == {frozenset(), frozenset(["twin-1", "twin-2"])}
    assert len({version for version, _ in seen}) == len(seen), "a version had two sets of labels"


def post(service: Process, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        service.address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def test_a_kill_during_writes_leaves_a_model(start: Callable[..., Process], model_folder: Path) -> None:
    """Killed in the midst of writes: what was answered with 201 is there, and nothing is broken."""
    for attempt in range(2):
        service = start(model_folder)
        confirmed: list[str] = []

        def write(service: Process = service, attempt: int = attempt, done: list[str] = confirmed) -> None:
            for n in range(1000):
                id = f"new-{attempt}-{n}"
                label = {"id": id, "texts": [f"thing {n}"], "images": [base64_of(picture("red", "bar"))]}
                try:
                    post(service, "/v1/labels", {"labels": [label]})
                except (urllib.error.URLError, OSError, ValueError):
                    return
                done.append(id)

        writer = threading.Thread(target=write)
        writer.start()
        deadline = time.monotonic() + 20
        while not confirmed and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.03 + 0.05 * attempt)  # no matter when
        service.stop(signal.SIGKILL)
        writer.join()
        model = load(model_folder)
        there = model.labels.items.ids.to_pylist()
        assert confirmed
        assert {*confirmed} <= {*there}
        assert len([id for id in there if id.startswith(f"new-{attempt}-")]) <= len(confirmed) + 1
        assert model.recommend(Item(texts=["thing 1"]), k=3)


def test_pictures_of_new_labels_are_kept_small(writing: TestClient) -> None:
    import base64

    large = base64.b64encode(encoded(picture("red", "circle", 1200), "JPEG")).decode()
    assert writing.post("/v1/labels", json={"labels": [{"id": "big", "images": [large]}]}).status_code == 201
    assert len(writing.get("/v1/labels/big/image/0").content) < 5000
