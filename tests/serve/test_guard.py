"""Not a way in: limits, tokens, headers, and errors that tell nothing of the inside."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from made import picture
from serving import base64_of, client_of, encoded

if TYPE_CHECKING:
    from starlette.testclient import TestClient


def ask(client: TestClient, item: Any, **others: Any) -> Any:
    return client.post("/v1/recommend", json={"items": [item], **others})


def assert_problem(answer: Any, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail"}
    assert problem["status"] == status
    for word in words:
        assert word in problem["detail"]
    for inside in ("Traceback", "/src/", "site-packages", ".py", "object at 0x"):
        assert inside not in answer.text


def png_bomb(side: int) -> bytes:
    """A PNG of side × side white pixels in a few kilobytes: 1 bit a pixel, deflated."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    packer = zlib.compressobj(9)
    row = b"\x00" + b"\xff" * (side // 8)
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [8_000, 40_000])
def test_a_decompression_bomb_is_refused_unopened(client: TestClient, side: int) -> None:
    import resource

    bomb = png_bomb(side)
    assert len(bomb) < 300_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = ask(client, {"images": [base64.b64encode(bomb).decode()]})
    assert_problem(answer, 413, "make it smaller")
    files = [("image", ("bomb.png", bomb, "image/png"))]
    assert_problem(client.post("/v1/recommend", files=files), 413)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000, "it was decoded"  # kB


def test_a_bomb_in_a_gif_with_many_frames_costs_one_frame(client: TestClient) -> None:
    frames = [Image.new("P", (400, 400), n % 256) for n in range(200)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert ask(client, {"images": [base64.b64encode(buffer.getvalue()).decode()]}).status_code == 200


def test_bodies_pictures_and_texts_have_limits(client: TestClient) -> None:
    from mufin.serve.schemas import LIMITS

    assert_problem(ask(client, {"texts": ["x" * (LIMITS.text_chars + 1)]}), 422, "items.0.texts.0")
    assert_problem(ask(client, {"texts": ["x"] * (LIMITS.texts + 1)}), 422)
    assert_problem(ask(client, {"text": "x"}), 422, "items.0.text: unknown field")
    as_text = client.post("/v1/recommend", json={"items": ["x"]})
    assert_problem(as_text, 422, 'items.0: Input should be an object, such as {"texts": ["oak desk"]}')
    small = base64_of(picture("red", "bar", 16))
    assert_problem(ask(client, {"images": [small] * (LIMITS.images + 1)}), 422)
    fat = encoded(picture("red", "bar")) + b"\0" * LIMITS.image_bytes
    files = [("image", ("fat.png", fat, "image/png"))]
    assert client.post("/v1/recommend", files=files).status_code in (413, 422)
    many = {"items": [{"images": [small] * 13}] * 5}
    assert_problem(client.post("/v1/recommend", json=many), 413, "65 images")
    labels = {"labels": [{"id": f"l{n}", "images": [small] * 13} for n in range(5)]}
    assert_problem(client.post("/v1/labels", json=labels), 413, "65 images")
    wide = base64.b64encode(png_bomb(6_000)).decode()  # each is small enough, all are not
    together = {"items": [{"texts": ["x"], "images": [wide]}] * 5}
    assert_problem(client.post("/v1/recommend", json=together), 413, "180,000,000 pixels")
    labels = {"labels": [{"id": f"l{n}", "images": [wide]} for n in range(5)]}
    assert_problem(client.post("/v1/labels", json=labels), 413, "180,000,000 pixels")
    assert_problem(ask(client, {"texts": ["x"]}, k=LIMITS.k + 1), 422, "k")
    assert_problem(ask(client, {"texts": ["x"]}, k=0), 422)
    long = b'{"items": [{"texts": ["' + b"x" * LIMITS.body_bytes + b'"]}]}'
    headers = {"Content-Type": "application/json"}
    assert_problem(client.post("/v1/recommend", content=long, headers=headers), 413, "body")

    def in_pieces() -> Any:  # no Content-Length to go by
        yield from (long[i : i + (1 << 20)] for i in range(0, len(long), 1 << 20))

    assert_problem(client.post("/v1/recommend", content=in_pieces(), headers=headers), 413, "body")


def test_values_are_counted_before_they_are_parsed(client: TestClient) -> None:
    """15 MB of empty objects took seconds, and hundreds of megabytes that were never given back."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    headers = {"Content-Type": "application/json"}
    for piece in (b"{},", b'"",', b"[[],", b"0,", b'{"":0},'):
        body = b'{"items": [' + piece * (15_000_000 // len(piece)) + b"{}]}"
        assert_problem(client.post("/v1/recommend", content=body, headers=headers), 413, "too many values")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "it was parsed"  # kB
    assert ask(client, {"texts": ["[{," * 6000] * 8}).status_code == 200, "marks in texts are no values"


def test_values_of_json_are_counted_up_to_a_bound() -> None:
    from mufin.serve.requests import count_values

    assert count_values(b'{"a": [1, 2, {"b": "c, [d]"}]}', 100) == 7, "an upper bound is enough for few"
    assert count_values(b'{"a": [1, 2, {"b": "c, [d]"}]}', 5) == 5
    assert count_values(rb'["\\", ",[{", "\"[,"]', 3) == 3, "a quote may be escaped"
    assert count_values(b'["' + b"," * 5000 + b'"]', 100) == 1
    assert count_values(b'"' + b'\\"' * 100_000, 10) == 0, "a text without end"


@pytest.mark.parametrize(
    "image",
    [
        "http://127.0.0.1:1/a.png",
        "/etc/hostname",
        "file:///etc/hostname",
        "../../etc/hostname",
        "data:,x",
        "%%%",
    ],
)
def test_no_address_is_fetched_and_no_path_is_opened(client: TestClient, image: str) -> None:
    assert_problem(ask(client, {"images": [image]}), 422, "items.0.images.0")


def test_only_kinds_of_pictures_that_browsers_show(client: TestClient) -> None:
    for kind, good in (
        ("PNG", True),
        ("JPEG", True),
        ("WEBP", True),
        ("GIF", True),
        ("TIFF", False),
        ("PCX", False),
    ):
        image = base64.b64encode(encoded(picture("red", "bar"), kind)).decode()
        assert (ask(client, {"images": [image]}).status_code == 200) is good, kind
    cut = encoded(picture("red", "circle", 300), "JPEG")[:400]
    assert_problem(ask(client, {"images": [base64.b64encode(cut).decode()]}), 422, "items.0.images.0")
    postscript = base64.b64encode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n").decode()
    assert_problem(ask(client, {"images": [postscript]}), 422)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"])
def test_other_content_types_are_refused(client: TestClient, kind: str) -> None:
    body = b'{"items": [{"texts": ["red"]}]}'
    for path in ("/v1/recommend", "/v1/explain", "/v1/labels", "/v1/examples"):
        answer = client.post(path, content=body, headers={"Content-Type": kind} if kind else {})
        assert_problem(answer, 415, "application/json")


def test_bodies_that_are_wrong(client: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    for content in (
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"items": []}',
        b'{"items": [{}]}',
        b'{"item": 1}',
    ):
        assert_problem(client.post("/v1/recommend", content=content, headers=headers), 422)
    assert_problem(ask(client, {"texts": ["red"], "colour": 1}), 422, "colour")
    assert_problem(ask(client, {"texts": ["red"], "id": "red-bar-4"}), 422, "not both")
    assert_problem(ask(client, {"texts": [" \n"]}), 422, "the item is empty")
    assert_problem(ask(client, {"id": "nobody"}), 422, "nobody")
    assert_problem(ask(client, {"texts": ["red"]}, allow=["nobody"]), 422, "nobody")
    assert_problem(ask(client, {"texts": ["red"]}, k="3"), 422)
    deep = b"[" * 100_000
    assert_problem(client.post("/v1/recommend", content=deep, headers=headers), 422)
    assert_problem(client.post("/v1/recommend", files={"wrong": b"x"}), 422, "wrong")
    assert_problem(client.post("/v1/recommend", data={"text": "x"}, files={"k": b"x"}), 422)


def test_unknown_addresses_and_methods(client: TestClient) -> None:
    assert_problem(client.get("/v1/nothing"), 404)
    assert_problem(client.get("/page/../app.py"), 404)
    assert_problem(client.get("/page/%2e%2e/app.py"), 404)
    for path in ("//etc/hostname", "/..%2fapp.py", "/..%5capp.py", "/fonts", "/", "/%00", "/" + "a" * 5000):
        assert_problem(client.get(f"/page{path}"), 404)
    assert_problem(client.post("/page/app.js"), 405)
    assert_problem(client.put("/v1/recommend"), 405)
    assert_problem(client.get("/v1/labels/q-red/image/0"), 404, "no image 0")
    assert_problem(client.get("/redoc"), 404)


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    for answer in (
        client.get("/"),
        client.get("/v1/model"),
        client.get("/nothing"),
        client.post("/v1/recommend"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers


def test_an_error_inside_tells_nothing(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from mufin.serve.service import Service

    monkeypatch.setattr(Service, "facts", lambda self: 1 / 0)
    answer = client.get("/v1/model")
    assert_problem(answer, 500, "see its log")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "division" not in answer.text


def test_no_other_site_is_let_in(writing: TestClient) -> None:
    site = {"Origin": "https://evil.example"}
    for answer in (writing.get("/v1/model", headers=site), writing.options("/v1/recommend", headers=site)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert_problem(
        writing.get("/v1/model", headers={"Host": "evil.example"}), 421
    )  # a name made to point here
    for host in ("localhost:8000", "LOCALHOST", "127.0.0.1", "[::1]:80"):
        assert writing.get("/v1/model", headers={"Host": host}).status_code == 200


SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}  # true behind a proxy that changes Host, too


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1.evil.example"},
        {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},  # another port or subdomain
    ],
    ids=str,
)
def test_posts_of_other_sites_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    """A form may post to any address without asking, and computing costs time even if nobody reads it."""
    item = {"items": [{"texts": ["red"]}]}
    for path in ("/v1/labels", "/v1/recommend", "/v1/explain", "/v1/examples"):
        assert_problem(client.post(path, json=item, headers=headers), 403, "other sites")
    form = client.post("/v1/recommend", data={"text": "x"}, files={"k": b"x"}, headers=headers)
    assert_problem(form, 403, "other sites")
    assert client.get("/v1/model", headers=headers).status_code == 200
    for own in ({"Origin": "http://127.0.0.1"}, {"Sec-Fetch-Site": "none"}, {**headers, **SAME_ORIGIN}):
        assert client.post("/v1/recommend", json=item, headers=own).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example@localhost",
        "evil.example:x@localhost:80",
        "localhost/evil.example",
        "localhost?x",
        "localhost#x",
        "local host",
        "localhost:80:80",
        "localhost:",
        "[::1",
        "[::1]x",
        "",
        "localhost, evil.example",
    ],
)
def test_a_host_header_is_a_host_and_a_port_alone(client: TestClient, host: str) -> None:
    assert_problem(client.get("/v1/model", headers={"Host": host}), 400, "Host")


def test_two_host_headers_are_refused(client: TestClient) -> None:
    headers = [("Host", "localhost"), ("Host", "localhost")]
    assert client.get("/v1/model", headers=headers).status_code == 400


def test_writing_needs_the_token(model_folder: Path) -> None:
    label = {"labels": [{"id": "new", "texts": ["new"]}]}
    with client_of(model_folder, token="s3cret") as client:
        assert client.get("/v1/model").json()["needs_token"]
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic s3cret"},
            {"Authorization": ""},
        ):
            refused = client.post("/v1/labels", json=label, headers=headers)
            assert_problem(refused, 401, "Bearer")
            assert refused.headers["www-authenticate"] == "Bearer"
        good = {"Authorization": "Bearer s3cret"}
        assert client.post("/v1/labels", json=label, headers=good).status_code == 201
        assert client.delete("/v1/labels/new").status_code == 401
        examples = {"items": [{"texts": ["x"]}], "labels": [["new"]]}
        assert client.post("/v1/examples", json=examples).status_code == 401
        assert client.delete("/v1/labels/new", headers=good).status_code == 200
        assert client.post("/v1/recommend", json={"items": [{"texts": ["red"]}]}).status_code == 200


def test_a_token_may_have_any_letters(model_folder: Path) -> None:
    label = {"labels": [{"id": "new", "texts": ["new"]}]}
    token = "schlüssel-ключ-à"  # its last byte in UTF-8 is a space in Latin-1
    with client_of(model_folder, token=token) as client:
        for wrong in (token[:-1].encode(), "schlüssel".encode("latin-1"), token.encode()[:-1], b"\xff"):
            refused = client.post("/v1/labels", json=label, headers={"Authorization": b"Bearer " + wrong})
            assert_problem(refused, 401, "Bearer")
        good = {"Authorization": b"Bearer " + token.encode()}
        assert client.post("/v1/labels", json=label, headers=good).status_code == 201


def test_open_to_others_without_a_token_nobody_writes(model_folder: Path) -> None:
    with client_of(model_folder, writable=False, local=False) as client:
        assert client.get("/v1/model").json()["writable"] is False
        refused = client.post("/v1/labels", json={"labels": [{"id": "new", "texts": ["new"]}]})
        assert_problem(refused, 403, "MUFIN_TOKEN")
        assert client.delete("/v1/labels/q-red").status_code == 403
        assert client.post("/v1/recommend", json={"items": [{"texts": ["red"]}]}).status_code == 200
