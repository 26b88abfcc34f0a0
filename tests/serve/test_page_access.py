"""The page for everybody: keyboard alone, phone, dark and light, axe-core."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import mufin

pytest_plugins = ["browsing"]

VIEWS = {
    "empty": ("", ".tiles a"),
    "hits": ("#/ask?item=red%2Fcircle-4", ".hit"),
    "explained": ("#/ask?item=red%2Fcircle-4&k=50&label=q-circle", "#panel .heat"),
    "labels": ("#/labels?q=things", ".label-row"),
    "map": ("#/map", ".in-view button"),
    "docs": ("docs", ".operation"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(open_page: Callable[..., Page], view: str, scheme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    address, ready = VIEWS[view]
    page = open_page(address, color_scheme=scheme, reduced_motion="reduce")
    page.locator(ready).first.wait_for()
    for size in ({"width": 1280, "height": 860}, {"width": 360, "height": 740}):
        page.set_viewport_size(size)
        found = Axe().run(page).response["violations"]
        bad = [rule for rule in found if rule["impact"] in {"serious", "critical"}]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in bad] == []


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_shows_everything_in_its_width(open_page: Callable[..., Page], view: str) -> None:
    address, ready = VIEWS[view]
    page = open_page(address, phone=True)
    page.locator(ready).first.wait_for()
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, a, input:not([type=file]), select")]
            .filter((it) => it.checkVisibility() && !it.closest(".unseen, .skip, p"))
            .map((it) => [it.outerHTML.slice(0, 60), it.getBoundingClientRect().height])
            .filter(([, height]) => height < 24)"""
    )
    assert small == []


@pytest.mark.parametrize("view", VIEWS)
def test_hints_fit_a_touch_screen(open_page: Callable[..., Page], view: str) -> None:
    address, ready = VIEWS[view]
    page = open_page(address, phone=True)
    page.locator(ready).first.wait_for()
    assert not re.search(
        r"\b(drop|paste|hover|ctrl|arrow keys?|click)\b", page.locator("body").inner_text(), re.I
    )


def test_a_phone_opens_a_sheet(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?item=red%2Fcircle-4", phone=True)
    page.locator(".hit").nth(1).tap()
    page.locator("#panel:modal .heat").wait_for()
    page.get_by_role("button", name="Close", exact=True).tap()
    page.locator("#panel").wait_for(state="hidden")
    expect(page).not_to_have_url(re.compile("label="))


def test_the_keyboard_alone_is_enough(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.locator(".tiles a").first.wait_for()
    focused = "document.activeElement.innerText || document.activeElement.id"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "asked"
    page.keyboard.type("green bar 4")
    page.get_by_role("option").wait_for()
    page.keyboard.press("ArrowDown")
    option = page.get_by_role("option").get_attribute("id") or ""
    expect(page.locator("#asked")).to_have_attribute("aria-activedescendant", option)
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "hit":
            break
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.dataset.label")
    assert second == page.locator(".hit").nth(1).get_attribute("data-label")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    page.locator("#panel .heat").wait_for()
    assert page.evaluate("document.activeElement.id") == "panel-title"
    page.keyboard.press("Escape")
    page.locator("#panel").wait_for(state="hidden")
    expect(page.locator(f".hit[data-label={second}]")).to_be_focused()


def test_the_map_is_walked_by_keys(open_page: Callable[..., Page]) -> None:
    page = open_page("#/map", reduced_motion="reduce")
    page.locator(".in-view button").first.wait_for()
    page.locator("canvas").focus()
    for key in ("+", "+", "ArrowLeft", "ArrowUp", "-"):
        page.keyboard.press(key)
    assert page.locator("#say").inner_text() != ""
    page.keyboard.press("Enter")
    page.locator("#panel").get_by_text("Nearest labels").wait_for()
    assert page.locator("#say").inner_text() != ""


def test_the_theme_is_chosen_and_kept(open_page: Callable[..., Page]) -> None:
    page = open_page(color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.locator("#theme")
    button.click()
    button.click()
    assert "Dark" in (button.get_attribute("aria-label") or "")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.emulate_media(color_scheme="dark")
    button.click()
    assert page.evaluate(ground) == dark


def test_nothing_comes_from_elsewhere(open_page: Callable[..., Page], site: str) -> None:
    page = open_page("#/labels")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    page.locator(".label-row").first.wait_for()
    assert asked
    assert [url for url in asked if not url.startswith((site, "blob:", "data:"))] == []


# Machado, Oliveira & Fernandes (2009), severity 1, for linear RGB; and Björn Ottosson's OKLab.
VISION = {
    "full": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "deuteranopia": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "tritanopia": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
CONES = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
LAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def linear(colours: list[str]) -> np.ndarray:
    values = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_of_the_map_are_told_apart_by_everybody(scheme: int) -> None:
    folder = Path(str(mufin.__file__)).parent / "serve" / "page"
    groups = re.findall(r"\.g\d .*light-dark\((#\w+), (#\w+)\)", (folder / "map.css").read_text("utf-8"))
    card = re.search(r"--card: light-dark\((#\w+), (#\w+)\)", (folder / "base.css").read_text("utf-8"))
    assert card
    colours, (ground,) = linear([group[scheme] for group in groups]), linear([card[scheme + 1]])
    assert len(colours) == 6
    luminance = [0.2126, 0.7152, 0.0722]
    for colour in colours:
        dark, light = sorted([colour @ luminance + 0.05, ground @ luminance + 0.05])
        assert light / dark >= 3  # WCAG's contrast of graphics
    for matrix in VISION.values():
        seen = np.cbrt(np.clip(colours @ np.array(matrix).T, 0, 1) @ np.array(CONES).T) @ np.array(LAB).T
        apart = np.linalg.norm(seen[:, None] - seen[None], axis=-1)[~np.eye(6, dtype=bool)]
        assert apart.min() > 0.15  # just noticeable is about 0.02
