"""A real browser on a real service: fixtures of the tests of the page."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from made import COLOURS, SHAPES, picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from mufin import Config

ARTEFACTS = Path(__file__).resolve().parents[1] / ".artefacts" / "page"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESK = {"viewport": {"width": 1280, "height": 860}}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
# How the browser itself tells of an answer that is an error; the status follows.
REFUSED = "Failed to load resource: the server responded with a status of "
PATIENCE = 120_000  # milliseconds: on a busy machine the first map alone may take half a minute
SHELVES = 60  # labels without training, so that there is more than one page of them


@pytest.fixture(scope="session")
def shop_folders(tmp_path_factory: pytest.TempPathFactory, tiny_config: Config) -> tuple[Path, Path]:
    """A trained model and its catalogue on disk; items have two pictures or one, labels mostly have one."""
    from mufin import Catalogue, Item, fit

    items, train, test = [], {}, {}
    for number in range(5):
        for colour in COLOURS:
            for shape in SHAPES:
                name = f"{colour}/{shape}-{number}"  # ids may have a slash
                shown = [picture(colour, shape, 64, shift=number % 3)]
                shown += [picture(colour, "square", 64)] if number == 4 else []
                items.append(Item(name, [f"{colour} {shape} {number}"], shown, category=shape))
                (test if number == 4 else train)[name] = [f"q-{colour}", f"q-{shape}"]
    labels = [Item(f"q-{name}", [f"{name} things"], [picture(name, "square", 64)]) for name in COLOURS]
    labels += [
        Item(f"q-{shape}", [f"{shape} things", "a shape"], [picture("blue", shape, 64)]) for shape in SHAPES
    ]
    labels += [Item(f"shelf-{n}", [f"shelf {n}"]) for n in range(SHELVES)]
    folder = tmp_path_factory.mktemp("shop")
    catalogue = Catalogue.build(items, labels, train=train, test=test)
    catalogue.write(folder / "catalogue")
    config = tiny_config.override(["memory.neighbours=5", "rank.beta=learnt"])  # all parts of a score
    fit(catalogue, config, out=folder / "model", quiet=True)
    return folder / "model", folder / "catalogue"


@pytest.fixture(scope="session")
def serving(
    shop_folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., str]]:
    """Serve a copy of the model on a port of its own, with these settings; gives the address."""
    import uvicorn

    from mufin.serve.app import build_app, build_service, listen
    from mufin.serve.schemas import Settings

    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(catalogue: bool = True, **settings: Any) -> str:
        model = tmp_path_factory.mktemp("served") / "shop"
        shutil.copytree(shop_folders[0], model)
        service = build_service(model, shop_folders[1] if catalogue else None, Settings(**settings))
        listener = listen("127.0.0.1", 0)
        server = uvicorn.Server(uvicorn.Config(build_app(service), log_config=None))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        running.append((server, thread))
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(30)


@pytest.fixture(scope="session")
def site(serving: Callable[..., str]) -> str:
    """The address of the service most tests use; they leave its labels as they were."""
    return serving()


def executable() -> str:
    """A Chromium of the system or of Playwright; without one the tests are skipped, and fail in CI."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    own = sorted(Path.home().glob(".cache/ms-playwright/chromium-*/chrome-linux*/chrome"))
    if found or own:
        return found or str(own[-1])
    sentence = "no Chromium for the tests of the page; scripts/browser.sh installs it"
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser a file; ended with it, since Playwright's event loop gets into the way of others."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    path = executable()
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser, site: str, request: pytest.FixtureRequest) -> Iterator[Callable[..., Page]]:
    """Open the page at a #/view; afterwards keep a screenshot, and fail on any error of the console.

    `expected` are the errors that the test provokes: statuses, or the beginnings of messages.
    """
    pages: list[Page] = []
    errors: list[str] = []
    allowed: list[str] = []

    def open_at(
        view: str = "", at: str = site, expected: tuple[str, ...] = (), phone: bool = False, **context: Any
    ) -> Page:
        allowed.extend(REFUSED + error if error.isdigit() else error for error in expected)
        context = {**DESK, **(PHONE if phone else {}), **context}
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(PATIENCE)
        page.on(
            "console", lambda message: message.type in {"error", "warning"} and errors.append(message.text)
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(at + view)
        pages.append(page)
        return page

    yield open_at
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    for number, page in enumerate(pages):
        page.screenshot(path=ARTEFACTS / f"{request.node.name.replace('/', '-')}-{number}.png")
        page.context.close()
    assert [error for error in errors if not error.startswith(tuple(allowed) or "\0")] == []
