"""What the service shows of itself and of what it serves."""

from __future__ import annotations

import json
import logging
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from mufin import Item, load
from mufin.serve.metrics import Metrics
from serving import Process, client_of, until

if TYPE_CHECKING:
    from starlette.testclient import TestClient


def test_what_is_served(client: TestClient) -> None:
    facts = client.get("/v1/model").json()
    expected = {
        "name": "model", "labels": 7, "living": 7, "modalities": "text+image", "own_items": False,
        "adapts": True, "catalogue": True, "splits": ["test", "train"], "categories": False, "writable": True,
        "needs_token": False, "k_max": 1000,
    }  # fmt: skip
    assert {name: facts[name] for name in expected} == expected
    assert facts["memory"] > 0
    assert {"texts", "text_chars", "images", "image_bytes", "body_bytes"} <= set(facts["limits"])
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


def test_labels_are_listed_searched_and_paged(client: TestClient) -> None:
    every = client.get("/v1/labels").json()
    assert (every["total"], len(every["labels"])) == (7, 7)
    page = client.get("/v1/labels", params={"offset": 2, "limit": 3}).json()
    assert (page["total"], page["labels"]) == (7, every["labels"][2:5])
    for words in ("RED", "q-red", "red thing"):
        found = client.get("/v1/labels", params={"q": words}).json()
        assert [label["id"] for label in found["labels"]] == ["q-red"]
    assert client.get("/v1/labels", params={"q": "(.*"}).json()["total"] == 0
    one = client.get("/v1/labels/q-red").json()
    assert one == {**found["labels"][0], "alpha": one["alpha"], "category": None}
    assert (one["frequency"], one["added"], one["images"]) == (12, False, 0)


def test_items_are_listed_with_their_truth_and_pictures(client: TestClient) -> None:
    every = client.get("/v1/items", params={"limit": 500}).json()
    assert every["total"] == len(every["items"]) == 60
    tests = client.get("/v1/items", params={"split": "test"}).json()
    assert tests["total"] == 12
    assert client.get("/v1/items", params={"q": "red bar", "split": "test"}).json()["total"] == 1
    assert client.get("/v1/items", params={"split": "nope"}).status_code == 422
    one = client.get("/v1/items/red-bar-4").json()
    truth = [{"id": "q-red", "text": "red things"}, {"id": "q-bar", "text": "bar things"}]
    assert (one["split"], one["images"], one["labels"]) == ("test", 1, truth)
    image = client.get("/v1/items/red-bar-4/image/0")
    assert image.headers["content-type"] == "image/png"
    again = client.get("/v1/items/red-bar-4/image/0", headers={"If-None-Match": image.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/v1/items/red-bar-4/image/1").status_code == 404
    assert client.get("/v1/items/nobody").status_code == 404


def test_without_a_catalogue(served: tuple[Path, Path]) -> None:
    with client_of(served[0]) as client:
        assert client.get("/v1/items").status_code == 404
        assert "--catalogue" in client.get("/v1/items/red-bar-4").json()["detail"]
        refused = client.post("/v1/recommend", json={"items": [{"id": "red-bar-4"}]})
        assert refused.status_code == 422
        body = {"item": {"texts": ["red"]}, "label": "q-red"}
        assert client.post("/v1/explain", json=body).json()["examples"] == []


def test_metrics_are_what_prometheus_reads(client: TestClient) -> None:
    client.post("/v1/recommend", json={"items": [{"texts": ["red"]}]})
    client.get("/v1/nothing")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [sample for family in text_string_to_metric_families(answer.text) for sample in family.samples]
    for stage in ("decode", "encode", "rank", "total"):
        of_stage = [sample for sample in samples if sample.labels.get("stage") == stage]
        buckets = [sample.value for sample in of_stage if sample.name == "mufin_stage_seconds_bucket"]
        (count,) = (sample.value for sample in of_stage if sample.name == "mufin_stage_seconds_count")
        assert buckets == sorted(buckets)
        assert buckets[-1] == count
    assert 'mufin_requests_total{method="POST",route="/v1/recommend",status="200"}' in answer.text
    assert ("mufin_queue_items", 0) in {(sample.name, sample.value) for sample in samples}
    assert ("mufin_labels", 7) in {(sample.name, sample.value) for sample in samples}
    assert "nothing" not in answer.text, "paths that strangers make up must not become labels"


def test_a_full_service_says_when_to_come_back(served: tuple[Path, Path]) -> None:
    with client_of(served[0], queue=2, batch=1) as client:
        hold = threading.Event()
        service: Any = client.service  # type: ignore[attr-defined]
        original = service.batcher.answer
        begun: list[Any] = []
        service.batcher.answer = lambda asks: (begun.append(asks), hold.wait(10), original(asks))[2]
        ask = {"items": [{"texts": ["red"]}]}
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(client.post, "/v1/recommend", json=ask)]
            until(lambda: begun)
            waiting += [pool.submit(client.post, "/v1/recommend", json=ask) for _ in range(2)]
            until(lambda: service.batcher.depth == 2)
            refused = client.post("/v1/recommend", json=ask)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            hold.set()
            assert [answer.result().status_code for answer in waiting] == [200, 200, 200]


def test_the_first_query_may_take_longer_than_the_deadline(served: tuple[Path, Path]) -> None:
    """Otherwise a service could not start on a busy machine."""
    with client_of(served[0], deadline=1e-4) as client:
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/recommend", json={"items": [{"texts": ["red"]}]}).status_code == 504


def test_a_request_that_takes_too_long(served: tuple[Path, Path]) -> None:
    with client_of(served[0], deadline=0.3) as client:
        service: Any = client.service  # type: ignore[attr-defined]
        original = service.batcher.answer
        service.batcher.answer = lambda asks: (time.sleep(0.6), original(asks))[1]
        late = client.post("/v1/recommend", json={"items": [{"texts": ["red"]}]})
        assert late.status_code == 504
        assert "retry-after" in late.headers


def test_the_map_is_made_once_and_follows_the_labels(model_folder: Path) -> None:
    def whole(client: TestClient) -> Any:
        answer = client.get("/v1/map")
        assert answer.status_code in (200, 202)
        return answer.json() if answer.status_code == 200 else None

    with client_of(model_folder) as client:
        assert client.get("/v1/map").json()["state"] == "computing"
        found = until(lambda: whole(client))
        assert sorted(found["label"]) == sorted(load(model_folder).labels.items.ids.to_pylist())
        assert {len(found[name]) for name in ("label", "text", "x", "y", "group")} == {7}
        assert max(map(abs, found["x"] + found["y"])) <= 1
        assert all(0 <= group < len(found["groups"]) for group in found["group"])
    assert (model_folder / ".mufin-map.json").is_file()
    with client_of(model_folder) as client:
        again = client.get("/v1/map")
        assert (again.status_code, again.json()) == (200, found), "it was kept"
        client.post("/v1/labels", json={"labels": [{"id": "new", "texts": ["red things"]}]})
        client.delete("/v1/labels/q-bar")
        after = client.get("/v1/map").json()
        assert sorted(after["label"]) == sorted({*found["label"], "new"} - {"q-bar"})
        at = {label: (after["x"][i], after["y"][i]) for i, label in enumerate(after["label"])}
        assert at["new"] == pytest.approx(at["q-red"], abs=0.01)
    assert load(model_folder).recommend(Item(texts=["red"]), k=1)
    (model_folder / ".mufin-map.json").write_text("{")
    with client_of(model_folder) as client:
        until(lambda: whole(client))


def test_a_stored_map_with_a_changed_bit_is_not_used(tmp_path: Path) -> None:
    from mufin.files.folder import with_checksum
    from mufin.serve.map import read_stored

    file, places = tmp_path / "map.json", [["red", 0.1234, -0.5, 0], ["schön", 1.0, 0.25, 1]]
    kept = {"network": "abc", "how": "PCA", "groups": ["a", "b"], "places": places}
    file.write_text(json.dumps(with_checksum(kept)))
    assert read_stored(file)["places"] == places
    data = file.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        with pytest.raises(ValueError, match="checksum|JSON|codec|Expecting|Invalid|Unterminated|Extra"):
            read_stored(file)


def test_clusters_have_names_of_their_own_words() -> None:
    from mufin.serve.layout import by_category, by_cluster

    random = np.random.default_rng(0)
    words = ["desk", "lamp", "shoe"]
    centres = np.eye(3, 8, dtype=np.float32)
    vectors = np.repeat(centres, 12, 0) + 0.05 * random.normal(size=(36, 8)).astype(np.float32)
    texts = [f"{word} number {n}" for word in words for n in range(12)]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    numbers, names = by_cluster(unit, texts, np.ones(36, np.int64))
    for number, text in zip(numbers, texts, strict=True):
        own = text.split()[0]
        assert own in names[number]
    assert len({*names}) == len(names)
    numbers, names = by_category([f"c{n}" for n in range(40)] + ["c0"])
    assert (len(names), names[0], names[-1]) == (12, "c0", "other")


def test_names_of_clusters_are_frequent_words_that_mean_something() -> None:
    from mufin.serve.layout import typical_words

    texts = ["gloves for builders", "boots for builders", "builder's hat for the site", "builders gloves"]
    texts += ["cups for children", "plates for children", "a spoon for children", "child's cup"]
    numbers = np.repeat([0, 1], 4)
    names = typical_words(texts, numbers, np.ones(8, np.float32))
    assert names == ["builders, gloves", "children, cup"]  # neither "for" nor "builder" beside "builders"


def test_lines_of_the_log() -> None:
    from mufin.serve.metrics import Human, Json

    facts = {"method": "GET", "path": "/v1/\x1b[31mlabels\n", "status": 404, "ms": 1.5, "client": "127.0.0.1"}
    record = logging.makeLogRecord({"msg": "x", "levelname": "INFO", **facts})
    human = Human(colours=False).format(record)
    assert re.fullmatch(r"\d\d:\d\d:\d\d GET /v1/\\x1b\[31mlabels\\n 404 1\.5 ms", human)
    assert "\033[33m404" in Human(colours=True).format(record)
    line = Json().format(record)
    assert "\n" not in line
    assert {name: json.loads(line)[name] for name in facts} == facts


def ask_much(address: str) -> int:
    body = json.dumps({"items": [{"texts": [f"red circle {n} " * 3]} for n in range(16)]}).encode()
    request = urllib.request.Request(f"{address}/v1/recommend", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return len(json.load(answer)["results"])


def test_one_thread_computes(client: TestClient) -> None:
    service: Any = client.service  # type: ignore[attr-defined]
    assert client.portal is not None
    assert client.portal.call(service.batcher.call, torch.get_num_threads) == 1
    assert client.portal.call(service.batcher.call, lambda: faiss.omp_get_max_threads()) == 1
    thread = client.portal.call(service.batcher.call, threading.current_thread)
    assert thread.name == "mufin-model-0"


def test_the_command_starts_logs_and_ends(
    start: Callable[..., Process], model_folder: Path, served: tuple[Path, Path]
) -> None:
    service = start(model_folder, "--catalogue", str(served[1]), "--log", "json")
    said = "".join(service.said)
    assert "7 labels" in said
    assert "60 items, splits: test, train" in said
    assert "from this machine" in said
    with urllib.request.urlopen(f"{service.address}/v1/model", timeout=10) as answer:
        assert json.load(answer)["living"] == 7
    with ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(ask_much, service.address) for _ in range(12)]
        time.sleep(0.2)
        code, errors = service.stop(signal.SIGINT)
        assert [one.result() for one in asked] == [16] * 12, "what was asked before the end is answered"
    assert code == 130, errors
    lines = errors.strip().splitlines()
    assert lines[-1] == "mufin: stopped"
    first = json.loads(lines[0])
    assert (first["method"], first["path"], first["status"]) == ("GET", "/v1/model", 200)
    assert "Traceback" not in errors


def test_a_port_that_is_taken(served: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    from mufin.cli import main

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert main(["serve", str(served[0]), "--port", str(other.getsockname()[1])]) == 2
    assert "try another --port" in capsys.readouterr().err


def test_services_in_one_process_count_apart() -> None:
    first, second = Metrics(), Metrics()
    for metrics in (first, second):
        metrics.gauge("mufin_labels", "Living labels", lambda: 3)
    first.request("GET", "/healthz", 200)
    with first.timed("decode"):
        pass
    first.batch(4)
    assert b'mufin_requests_total{method="GET",route="/healthz",status="200"} 1.0' in first.text()
    assert b'mufin_stage_seconds_count{stage="decode"} 1.0' in first.text()
    assert b"mufin_batch_items_sum 4.0" in first.text()
    assert b"/healthz" not in second.text()
    assert b"mufin_labels 3.0" in second.text()
    assert b"python_info" not in first.text(), "collectors of the process belong to its owner"
