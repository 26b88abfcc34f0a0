"""The files of the page, as a browser asks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient as Client

from mufin.serve.routes.page import FOLDER, PageFiles

if TYPE_CHECKING:
    from starlette.testclient import TestClient


@pytest.mark.parametrize(
    ("address", "file", "kind"),
    [
        ("/", "index.html", "text/html; charset=utf-8"),
        ("/docs", "docs.html", "text/html; charset=utf-8"),
        ("/page/app.js", "app.js", "text/javascript; charset=utf-8"),
        ("/page/base.css", "base.css", "text/css; charset=utf-8"),
        ("/page/icon.svg", "icon.svg", "image/svg+xml"),
        ("/page/fonts/newsreader.woff2", "fonts/newsreader.woff2", "font/woff2"),
    ],
)
def test_files_are_revalidated_at_every_use(client: TestClient, address: str, file: str, kind: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, answer.content) == (200, (FOLDER / file).read_bytes())
    assert answer.headers["content-type"] == kind
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = client.get(address, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    assert again.headers["cache-control"] == "no-cache"
    head = client.head(address)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))
    route = address if address in ("/", "/docs") else "/page/{name:path}"
    assert (
        f'mufin_requests_total{{method="HEAD",route="{route}",status="200"}}' in client.get("/metrics").text
    )


def test_a_changed_file_and_a_new_version_have_new_tags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "app.js"
    file.write_text("one")
    client = Client(PageFiles(directory=tmp_path))
    tags = [client.get("/app.js").headers["etag"]]
    os.utime(file, (1, 1))
    tags.append(client.get("/app.js").headers["etag"])
    monkeypatch.setattr("mufin.serve.routes.page.VERSION", "another")
    tags.append(client.get("/app.js").headers["etag"])
    assert len({*tags}) == 3
    assert client.get("/app.js", headers={"If-None-Match": tags[0]}).status_code == 200


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(HTTPException) as caught:
        Client(PageFiles(directory=folder)).get("/link")
    assert caught.value.status_code == 404
