"""mufin.Client against real services: the answers of the model, errors, limits, patience."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

from made import picture
from mufin import Client, Item, load
from mufin import client as module
from mufin.errors import ServiceError, UsageError
from mufin.serve import responses
from mufin.serve.connections import Door
from serving import encoded, listening

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def service(model_folder: Path) -> Iterator[str]:
    with listening(model_folder, Door(20)) as server:
        yield f"http://127.0.0.1:{server.port}"  # type: ignore[attr-defined]  # set by `listening`


def test_answers_are_those_of_the_model(service: str, model_folder: Path, tmp_path: Path) -> None:
    model = load(model_folder)
    image = picture("red", "circle")
    image.save(tmp_path / "red.tif")
    items = [
        Item(texts=["red circle"]),
        Item(texts=["bar"], images=[image, tmp_path / "red.tif", encoded(image)]),
        *(Item(texts=[f"thing {n}"]) for n in range(70)),  # more than one call takes
    ]
    with Client(service + "/") as client:
        for found, hits in zip(client.recommend(items, k=3), model.recommend(items, k=3), strict=True):
            assert [(hit.label, hit.text) for hit in found] == [(hit.label, hit.text) for hit in hits]
            for one, other in zip(found, hits, strict=True):
                assert one.probability == pytest.approx(other.probability, abs=1e-4)
                assert one.parts == pytest.approx(dict(other.parts), abs=1e-3)
        assert np.allclose(client.embed(items), model.embed(items).vector().numpy(), atol=1e-5)
        assert client.embed(items[0]).shape == (16,)
        assert client.recommend([]) == []
        assert client.recommend({"title": "red circle"}, k=3).to_frame().shape[0] == 3
        best = client.recommend("red circle", k=1, allow=["q-bar", "q-red"], deny=["q-red"])
        assert [hit.label for hit in best] == ["q-bar"]
        assert client.recommend("red circle", min_probability=1.0) == []
        explained = client.explain(items[1], "q-red")
        assert np.array(explained["attention"]).shape == (len(explained["query"]), len(explained["label"]))
        assert client.info()["labels"] == 7
        assert repr(client) == f"Client('{service}')"


def test_labels_come_and_go(service: str) -> None:
    with Client(service) as client:
        ids = [f"new/{n}" for n in range(70)]
        client.add_labels([Item(id, [f"thing {id}"], [picture("red", "bar")]) for id in ids])
        assert client.info()["living"] == 77
        assert client.label("new/3")["texts"] == ["thing new/3"]
        assert {label["id"] for label in client.labels("new/3")} == {
            "new/3",
            *(f"new/3{n}" for n in range(10)),
        }
        client.add_examples(["a very special thing"], [["new/3"]])
        assert client.recommend("a very special thing", k=1)[0].evidence["memory"] > 0
        client.remove_labels(ids)
        client.remove_labels([])
        assert client.info()["living"] == 7
        with pytest.raises(UsageError, match="1 items, but 2 lists"):
            client.add_examples("x", [["q-red"], ["q-red"]])


def test_errors_say_what_the_service_says(service: str, tmp_path: Path) -> None:
    with Client(service) as client:
        with pytest.raises(ServiceError, match="no label 'nothing'") as caught:
            client.label("nothing")
        assert caught.value.status == 404
        with pytest.raises(ServiceError, match="exists already") as caught:
            client.add_labels(Item("q-red", ["x"]))
        assert caught.value.status == 409
        with pytest.raises(ServiceError, match="no catalogue") as caught:
            client.recommend(Item("red-bar-4"))
        assert caught.value.status == 422
        with pytest.raises(UsageError, match="3 is not an item"):
            client.recommend([3])  # type: ignore[list-item]
        long = "word " * 3900
        assert len(client.recommend([Item(texts=[long] * 3)] * 30, k=1)) == 30  # 413 at first, then in parts
        with pytest.raises(ServiceError) as caught:
            client.recommend(Item(texts=[long] * 33))
        assert caught.value.status == 422
    with pytest.raises(UsageError, match="expected one like"):
        Client("127.0.0.1:8000")


def test_writing_needs_the_token(model_folder: Path) -> None:
    with listening(model_folder, Door(20), token="schlüssel") as server:
        address = f"http://127.0.0.1:{server.port}"  # type: ignore[attr-defined]
        with Client(address) as client, pytest.raises(ServiceError) as caught:
            client.remove_labels("q-red")
        assert caught.value.status == 401
        with Client(address, token="schlüssel") as client:
            client.remove_labels("q-red")
            assert client.info()["living"] == 6


def answering(statuses: list[int], headers: dict[str, str], delay: float = 0.0) -> Callable[[], HTTPServer]:
    """A service that answers with these statuses in turn, the last one for ever."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(delay)
            status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
            body = b'{"name": "stub"}' if status == 200 else b"<html>"
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    def start() -> HTTPServer:
        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    return start


@pytest.mark.parametrize(
    ("statuses", "headers", "delay", "timeout", "result"),
    [
        ([503, 429, 200], {"Retry-After": "0"}, 0, 30, None),
        ([503, 200], {}, 0, 30, (503, "HTTP 503")),  # without Retry-After, it will not pass
        ([503], {"Retry-After": "2"}, 0, 1, (503, "HTTP 503")),  # longer than one wants to wait
        ([500, 200], {"Retry-After": "0"}, 0, 30, (500, "HTTP 500")),
        ([200], {}, 1.0, 0.2, (None, "does not answer within 0.2 s")),
    ],
)
def test_patience(
    statuses: list[int],
    headers: dict[str, str],
    delay: float,
    timeout: float,
    result: tuple[int | None, str] | None,
) -> None:
    server = answering(statuses, headers, delay)()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}", timeout=timeout) as client:
            if result is None:
                assert client.info()["name"] == "stub"
                return
            with pytest.raises(ServiceError, match=result[1]) as caught:
                client.info()
            assert caught.value.status == result[0]
    finally:
        server.shutdown()
        server.server_close()


def test_nobody_there() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with (
            Client(f"http://127.0.0.1:{held.getsockname()[1]}") as client,
            pytest.raises(ServiceError, match="cannot be reached.*is `mufin serve` running"),
        ):
            client.info()


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        (module.Explained, responses.Explained),
        (module.Near, responses.Near),
        (module.Example, responses.Example),
        (module.Label, responses.Label),
        (module.FullLabel, responses.FullLabel),
        (module.ServiceInfo, responses.Model),
    ],
)
def test_types_have_the_fields_of_the_schema(typed: type, model: type) -> None:
    assert get_type_hints(typed).keys() == model.model_fields.keys()  # type: ignore[attr-defined]


def test_the_document_shows_the_client(service: str) -> None:
    page = (ROOT / "docs/http.md").read_text("utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    exec(code.replace("http://127.0.0.1:8000", service), {})
