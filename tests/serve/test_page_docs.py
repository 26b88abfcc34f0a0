"""/docs in a real browser: the OpenAPI schema as a page, which sends requests."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

pytest_plugins = ["browsing"]


def opened(page: Page, method: str, path: str) -> Locator:
    """The operation, unfolded."""
    found = page.locator(".operation", has=page.locator("summary", has_text=f"{method}{path}")).filter(
        has=page.get_by_role("heading", name=path, exact=True)
    )
    found.locator("summary").click()
    return found


def test_every_operation_of_the_schema_is_shown(open_page: Callable[..., Page], site: str) -> None:
    with urllib.request.urlopen(f"{site}openapi.json", timeout=30) as answer:
        paths = json.load(answer)["paths"]
    page = open_page("docs")
    page.locator(".operation").first.wait_for()
    said = page.locator(".operation summary").evaluate_all(
        "all => all.map((it) => it.children[0].textContent + ' ' + it.children[1].textContent)"
    )
    assert said == [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


def test_operations_can_be_tried(open_page: Callable[..., Page]) -> None:
    page = open_page("docs")
    ask = opened(page, "POST", "/v1/recommend")
    expect(ask).to_contain_text("min_probability number, at least 0, at most 1, default 0")
    ask.get_by_role("textbox", name="Body").fill('{"items": [{"texts": ["red circle"]}], "allow": ["q-red"]}')
    ask.get_by_role("button", name="Send").click()
    expect(ask.locator(".answer")).to_contain_text('"label": "q-red"')
    image = opened(page, "GET", "/v1/items/{id}/image/{n}")
    image.get_by_role("textbox").nth(0).fill("red/circle-4")
    image.get_by_role("textbox").nth(1).fill("0")
    image.get_by_role("button", name="Send").click()
    image.locator(".answer img").wait_for()
    listed = opened(page, "GET", "/v1/labels")
    listed.get_by_role("textbox").first.fill("circle")
    listed.get_by_role("button", name="Send").click()
    expect(listed.locator(".answer")).to_contain_text('"total": 1')


def test_errors_are_shown_and_the_token_is_sent(
    open_page: Callable[..., Page], serving: Callable[..., str]
) -> None:
    page = open_page("docs", at=serving(token="schlüssel"), expected=("401",))
    add = opened(page, "POST", "/v1/labels")
    add.get_by_role("button", name="Send").click()
    expect(add.locator(".answer")).to_contain_text("401")
    page.locator("#token").fill("schlüssel")
    add.get_by_role("button", name="Send").click()
    expect(add.locator(".answer")).to_contain_text('"added"')
