"""Models that search in Milvus: embedded, and several replicas of one model at a server."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pymilvus", reason="needs the extra milvus")
pytest.importorskip("milvus_lite", reason="needs the extra milvus")

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.cli import main
from mufin.errors import ConfigError, ModelError, ServiceError, UsageError
from mufin.model.export import move_to_milvus, refill
from mufin.model.hub import _without_foreign_address
from mufin.model.store import reload_labels, save_labels
from mufin.retrieve.collection import TOKEN, URI, check_milvus, connect
from mufin.retrieve.milvus import MilvusIndex
from mufin.settings import Retrieve

THINGS = [Item("", ["red circle"]), Item("", ["blue bar 3"]), Item("", ["yellow"])]
ODD = 'a"] or label > 0 or "\\\n\x00'  # an id that would end an expression, were it in one


Answers = list[list[tuple[str, float]]]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(folder)]
    return subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL)


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(30)


def until_it_listens(port: int) -> None:
    for _ in range(600):
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nothing at port {port}")


def eventually(ask: Callable[[], Answers]) -> Answers:
    """gRPC waits between its attempts to connect again."""
    for _ in range(100):
        try:
            return ask()
        except ServiceError:
            time.sleep(0.2)
    return ask()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "data.db"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[str]:
    port = free_port()
    process = start(data, port)
    try:
        until_it_listens(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


@pytest.fixture
def run(tiny_model: Mufin, server: str, tmp_path: Path) -> Path:
    """The folder of a model that searches at the server."""
    move_to_milvus(tiny_model, tmp_path / "run", server, "shop")
    return tmp_path / "run"


def answers(model: Mufin, **options: object) -> Answers:
    return [
        [(hit.label, round(hit.score, 5)) for hit in hits] for hits in model.recommend(THINGS, 5, **options)
    ]


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def found(model: Mufin) -> set[str]:
    """The labels that the search finds, without other signals."""
    rows = model.shortlist(THINGS, 20).labels.numpy()
    return {name for name, _ in model.labels.names(np.unique(rows[rows >= 0])).values()}


def test_a_model_in_milvus_answers_as_the_exact_one(tiny_model: Mufin, run: Path) -> None:
    model = load(run)
    assert isinstance(model.index, MilvusIndex)
    assert answers(model) == answers(tiny_model)
    few = {"allow": ["q-red", "q-blue", "q-bar"], "deny": ["q-blue"]}
    assert answers(model, **few) == answers(tiny_model, **few)
    assert found(model) == set(model.labels.items.ids.to_pylist())


def test_replicas_follow_each_other(run: Path) -> None:
    one, two = load(run), load(run)
    one.add_labels([Item(ODD, ["red circle"]), Item("q-new", ["yellow things"])])
    assert {ODD, "q-new"} <= found(one)  # at once, here alone
    assert found(two) == found(load(run))
    one.remove_labels(["q-red"])
    assert answers(one, deny=[ODD], allow=[ODD, "q-new"])[0][0][0] == "q-new"
    save_labels(one, run)
    begin = time.process_time()  # other programs may keep the machine busy
    assert "q-red" not in found(two)  # though its labels are old
    two = reload_labels(two, run)
    assert {ODD, "q-new"} <= found(two)
    assert time.process_time() - begin < 1.0
    assert found(two) == found(one) == found(load(run))
    # Rows are renumbered; numbers in the collection are not, nor are they used again.
    two.remove_labels([ODD, "q-new"])
    two.add_labels([Item("q-newer", ["green things"])])
    save_labels(two, run)
    assert answers(two) == answers(load(run))
    assert "q-newer" in found(load(run))
    assert answers(load(run)) == answers(reload_labels(one, run))


def test_a_service_follows_the_command_line(run: Path) -> None:
    from serving import client_of

    with client_of(run, watch=True) as client:
        query = {"items": [{"texts": ["red circle"]}], "k": 20}
        lines = run.parent / "new.jsonl"
        lines.write_text('{"id": "q-late", "texts": ["red circle"]}\n')
        assert main(["add-labels", str(run), str(lines)]) == 0
        begin = time.monotonic()
        while time.monotonic() < begin + 10:
            hits = client.post("/v1/recommend", json=query).json()["results"][0]["hits"]
            if "q-late" in [hit["label"] for hit in hits]:
                break
            time.sleep(0.05)
        assert time.monotonic() - begin < 5.0  # 0.6 s when nothing else runs


def test_a_kill_while_saving_leaves_nothing_that_is_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(run)
    before = answers(model)
    model.add_labels([Item("q-lost", ["red circle"])])
    with monkeypatch.context() as patch:
        patch.setattr("mufin.model.store.install", killed)
        with pytest.raises(KeyboardInterrupt):
            save_labels(model, run)
    again = load(run)
    assert answers(again) == before
    again.add_labels([Item("q-blue-too", ["blue bar 3"])])
    save_labels(again, run)
    assert "q-lost" not in found(load(run))
    assert "q-blue-too" in found(load(run))


def test_a_server_that_is_away_and_returns(tiny_model: Mufin, tmp_path: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    process = start(tmp_path / "data", port)
    try:
        until_it_listens(port)
        move_to_milvus(tiny_model, tmp_path / "run", uri, "shop")
        model = load(tmp_path / "run")
        expected = answers(model)
    finally:
        stop(process)
    with pytest.raises(ServiceError, match=f"Milvus at {uri} does not answer .*: start it, or set {URI}"):
        model.recommend(THINGS)
    with pytest.raises(ServiceError, match="start it"):
        load(tmp_path / "run")
    process = start(tmp_path / "data", port)
    try:
        until_it_listens(port)
        assert eventually(lambda: answers(model)) == expected
    finally:
        stop(process)


def test_a_lost_or_foreign_collection_is_explained(
    run: Path, server: str, tiny_model: Mufin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, client = load(run), connect(server)
    name = model.index.collection.name
    client.rename_collection(name, "elsewhere")
    with pytest.raises(ModelError, match=f"has no collection {name!r}.*mufin export RUN --to milvus"):
        load(run)
    assert main(["export", str(run), "--to", "milvus"]) == 0
    assert capsys.readouterr().out == f"Collection {name} filled in Milvus at {server}\n"
    assert answers(load(run)) == answers(tiny_model)
    client.drop_collection(name)
    other = move_to_milvus(tiny_model, tmp_path / "other", server, "shop")
    client.rename_collection(other.name, name)
    with pytest.raises(ModelError, match="belongs to another model"):
        load(run)
    with pytest.raises(UsageError, match="already"):
        refill(run)


def test_training_puts_the_model_into_a_file(shop: Catalogue, tiny_config: Config, tmp_path: Path) -> None:
    uri = tmp_path / "shop.db"
    config = tiny_config.override(["retrieve.search=milvus", f"retrieve.uri={uri}"])
    model = fit(shop, config, tmp_path / "run", quiet=True)
    assert isinstance(model.index, MilvusIndex)
    again = load(tmp_path / "run")
    assert answers(again) == answers(model)
    save(again, tmp_path / "copy")  # shares the collection
    assert answers(load(tmp_path / "copy")) == answers(model)


def test_a_file_in_use_is_explained(data: Path, server: str) -> None:
    with pytest.raises(ServiceError) as raised:
        connect(str(data))
    assert "only one process at a time can use a file" in str(raised.value)
    assert f"`milvus-lite server --data-dir {data} --host 127.0.0.1`" in str(raised.value)


def test_settings_need_an_address_without_a_password(tiny_config: Config) -> None:
    with pytest.raises(ConfigError, match="needs retrieve.uri"):
        tiny_config.override(["retrieve.search=milvus"])
    for uri in ("http://root:secret@host:19530", "shop", "ftp://host"):
        with pytest.raises(ConfigError, match="MUFIN_MILVUS_TOKEN"):
            tiny_config.override(["retrieve.search=milvus", f"retrieve.uri={uri}"])
    with pytest.raises(ConfigError, match="no effect"):
        tiny_config.override(["retrieve.uri=shop.db"])


def test_a_missing_package_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UsageError, match=r'pip install "mufin\[milvus\]"'):
        load(run)


def test_a_downloaded_model_does_not_choose_the_address(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=f"user/model searches in Milvus at .*; set {URI} to a server"):
        _without_foreign_address(run, "user/model")
    monkeypatch.setenv(URI, "http://127.0.0.1:19530")
    assert _without_foreign_address(run, "user/model") == run


def test_only_the_chosen_address_gets_the_token(
    run: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pymilvus

    sent = {}
    monkeypatch.setattr(pymilvus, "MilvusClient", lambda uri, token, **_: sent.update({uri: token}))
    monkeypatch.setenv(TOKEN, "secret")
    connect(server)
    monkeypatch.setenv(URI, "http://127.0.0.1:1")
    connect("http://127.0.0.1:1")
    assert sent == {server: "", "http://127.0.0.1:1": "secret"}


def test_a_file_for_several_processes_is_refused_before_training() -> None:
    with pytest.raises(UsageError, match="2 train"):
        check_milvus(Retrieve(search="milvus", uri="shop.db"), 2)
