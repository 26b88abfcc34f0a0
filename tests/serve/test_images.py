"""The service sends images that it decoded and encoded itself, and never another file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from mufin.errors import CatalogueError
from mufin.serve.images import SIDE
from serving import client_of, encoded


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalogue whose images are files: good ones, and some that must not be sent."""
    root = tmp_path_factory.mktemp("shelf")
    folder = root / "shop"
    folder.mkdir()
    red = Image.new("RGB", (40, 20), "red")
    for name, kind in (("a.png", "PNG"), ("b.jpg", "JPEG"), ("c.webp", "WEBP"), ("d.gif", "GIF")):
        (folder / name).write_bytes(encoded(red, kind))
    (root / "private.png").write_bytes(encoded(red))
    (folder / "link.png").symlink_to(root / "private.png")
    (folder / "text.png").write_text("secret")
    (folder / "large.png").write_bytes(encoded(red.resize((3000, 1500))))
    comment = io.BytesIO()
    red.save(comment, "JPEG", comment=b"secret")
    (folder / "comment.jpg").write_bytes(comment.getvalue())
    rows = [
        {"id": "good", "texts": ["good"], "images": ["a.png", "b.jpg", "c.webp", "d.gif"]},
        {"id": "odd", "texts": ["odd"], "images": ["text.png", "none.png", "large.png", "comment.jpg"]},
        {"id": "link", "texts": ["link"], "images": ["link.png"]},
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def showing(served: tuple[Path, Path], shelf: Path) -> Iterator[TestClient]:
    with client_of(served[0], shelf) as client:
        yield client


def test_images_are_encoded_again(showing: TestClient) -> None:
    for n, kind in enumerate(("png", "jpeg", "webp", "png")):
        answer = showing.get(f"/v1/items/good/image/{n}")
        assert answer.headers["content-type"] == f"image/{kind}"
        image = Image.open(io.BytesIO(answer.content))
        assert (image.format, image.size) == (kind.upper(), (40, 20))
        red, green, blue = image.convert("RGB").getpixel((20, 10))
        assert (red > 240, green < 15, blue < 15) == (True, True, True)
        tag = {"If-None-Match": answer.headers["etag"]}
        assert showing.get(f"/v1/items/good/image/{n}", headers=tag).status_code == 304


@pytest.mark.parametrize("address", ["odd/image/0", "odd/image/1", "odd/image/9", "link/image/0"])
def test_what_is_no_image_of_the_catalogue_is_not_sent(showing: TestClient, address: str) -> None:
    answer = showing.get(f"/v1/items/{address}")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert "secret" not in answer.text
    assert "shop" not in answer.text  # nor where files are


def test_large_images_are_sent_smaller(showing: TestClient) -> None:
    image = Image.open(io.BytesIO(showing.get("/v1/items/odd/image/2").content))
    assert image.size == (SIDE, SIDE // 2)


def test_comments_of_a_file_are_not_sent(showing: TestClient) -> None:
    answer = showing.get("/v1/items/odd/image/3")
    assert (answer.status_code, b"secret" in answer.content) == (200, False)


def test_an_item_with_a_link_out_is_asked_with_its_texts(showing: TestClient) -> None:
    answer = showing.post("/v1/recommend", json={"items": [{"id": "link"}, {"id": "good"}], "k": 2})
    assert answer.status_code == 200
    assert showing.get("/v1/items/link").status_code == 200


def test_a_catalogue_that_names_other_files_is_not_served(served: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"id": "p", "images": ["/etc/hostname"]}\n')
    with pytest.raises(CatalogueError, match=r"items\.jsonl:1: image path '/etc/hostname' leads out"):
        client_of(served[0], tmp_path).__enter__()
