"""A new model is loaded beside the old one and swapped, without a lost request."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from mufin import Catalogue, Config, Item, fit, load, save
from serving import Process, client_of, until

QUERY = {"items": [{"texts": ["red circle"]}], "k": 3}


@pytest.fixture(scope="session")
def other(shop: Catalogue, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another seed, without a memory."""
    folder = tmp_path_factory.mktemp("other") / "model"
    fit(shop, tiny_config.override(["seed=7"]), folder, quiet=True)
    return folder


@pytest.fixture
def link(model_folder: Path) -> Path:
    link = model_folder.parent / "current"
    link.symlink_to(model_folder.name)
    return link


def point(link: Path, folder: Path) -> None:
    """Point a link to another folder, in one step."""
    fresh = link.with_name("fresh")
    fresh.symlink_to(folder)
    fresh.replace(link)


def test_another_model_is_swapped_in(
    link: Path, other: Path, served: tuple[Path, Path], tmp_path: Path
) -> None:
    with client_of(link, served[1]) as client:
        before = client.get("/v1/model").json()
        assert client.post("/v1/reload").json() == {"model": before["model"], "labels": before["living"]}
        client.post("/v1/labels", json={"labels": [{"id": "new", "texts": ["red things"]}]})
        point(link, Path(shutil.copytree(other, tmp_path / "v2")))
        refused = client.post("/v1/labels", json={"labels": [{"id": "newer", "texts": ["blue things"]}]})
        assert refused.status_code == 409
        assert "/v1/reload" in refused.json()["detail"]
        answer = client.post("/v1/reload").json()
        assert answer["model"] == client.get("/v1/model").json()["model"] != before["model"]
        assert client.get("/v1/model").json()["memory"] == 0
        hits = client.post("/v1/recommend", json=QUERY).json()["results"][0]["hits"]
        expected = load(other).recommend(Item(texts=["red circle"]), k=3)
        assert [hit["label"] for hit in hits] == [hit.label for hit in expected]
        added = client.post("/v1/labels", json={"labels": [{"id": "newer", "texts": ["blue things"]}]})
        assert added.status_code == 201
        assert "newer" in [item.id for item in load(tmp_path / "v2").labels.items]
        assert client.get("/v1/map").status_code in (200, 202)


def test_a_broken_model_leaves_the_old_one(link: Path, tmp_path: Path) -> None:
    with client_of(link) as client:
        before = client.get("/v1/model").json()["model"]
        (tmp_path / "empty").mkdir()
        point(link, tmp_path / "empty")
        assert client.post("/v1/reload").status_code == 409
        assert client.post("/v1/recommend", json=QUERY).status_code == 200
        assert client.get("/v1/model").json()["model"] == before


def test_only_writers_reload(model_folder: Path) -> None:
    with client_of(model_folder, token="secret") as client:
        assert client.post("/v1/reload").status_code == 401
        allowed = client.post("/v1/reload", headers={"Authorization": "Bearer secret"})
        assert allowed.status_code == 200


def test_no_request_is_lost_while_models_change(link: Path, other: Path, model_folder: Path) -> None:
    with client_of(link) as client:
        failed, answered, stop = [], [0], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answer = client.post("/v1/recommend", json=QUERY)
                answered[0] += 1
                if answer.status_code != 200:
                    failed.append(answer.text)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        versions = set()
        for folder in (other, model_folder, other, model_folder):
            point(link, folder)
            versions.add(client.post("/v1/reload").json()["model"])
            time.sleep(0.2)
        stop.set()
        for thread in threads:
            thread.join()
        assert len(versions) == 2
        assert answered[0] > 20
        assert not failed


def test_a_watching_service_sees_the_labels_of_another(model_folder: Path, other: Path, link: Path) -> None:
    with client_of(link, watch=True) as client:
        model = load(model_folder)
        model.add_labels(Item("brand-new", ["green bar"]))
        save(model, model_folder)
        until(lambda: client.get("/v1/labels/brand-new").status_code == 200)
        point(link, other)
        until(lambda: client.get("/v1/model").json()["memory"] == 0)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_sighup_reloads(link: Path, other: Path, start: Callable[..., Process]) -> None:
    service = start(link)

    def version() -> str:
        with urllib.request.urlopen(f"{service.address}/readyz") as answer:
            found: str = json.load(answer)["model"]
            return found

    before = version()
    point(link, other)
    os.kill(service.process.pid, signal.SIGHUP)
    until(lambda: version() != before)
