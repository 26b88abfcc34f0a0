"""The documentation site: it builds strictly, shows everything public, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import mufin

ROOT = Path(__file__).resolve().parent.parent


class Loaded(HTMLParser):
    """Collects what a page makes a browser load, and where it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "preload", "icon"):
            self.loads.append(found.get("href") or "")
        elif tag == "a":
            self.links.append(found.get("href") or "")
        self.loads += [value for name in ("src", "srcset") if (value := found.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        found = Loaded()
        found.feed(page.read_text("utf-8"))
        assert found.loads
        assert not [one for one in found.loads if re.match(r"(https?:)?//", one)], page
        for one in found.loads:
            if page.name != "404.html":  # its addresses are absolute
                assert (page.parent / one.split("#")[0].split("?")[0]).exists(), (page, one)
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", style.read_text("utf-8")), style


def test_relative_links_lead_somewhere(site: Path) -> None:
    """Also those that mkdocs does not check: in HTML, and to files that are no pages."""
    for page in site.rglob("*.html"):
        found = Loaded()
        found.feed(page.read_text("utf-8"))
        local = {one.split("#")[0] for one in found.links if not re.match(r"[a-z]+:|#|/", one)} - {""}
        assert not [one for one in local if not (page.parent / one).exists()], page


def test_the_reference_shows_every_public_name(site: Path) -> None:
    reference = (site / "docs" / "api.html").read_text("utf-8")
    names = {*mufin.__all__, "sklearn.MufinClassifier"} - {"__version__"}
    assert not [name for name in names if f'id="mufin.{name}"' not in reference]
    assert 'id="mufin.Mufin.recommend"' in reference


def test_every_page_of_docs_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text("utf-8")
    pages = [path.relative_to(ROOT).with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    lacking = [
        page for page in pages
        if f'href="{page}"' not in home and f'href="{page.parent}/index.html"' not in home
    ]  # fmt: skip
    assert not lacking
