"""The page's views Labels and Map in a real browser."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from made import picture

DECODED = "image => image.decode().then(() => image.naturalWidth)"

pytest_plugins = ["browsing"]


def file(colour: str = "yellow") -> dict[str, object]:
    buffer = io.BytesIO()
    picture(colour, "bar", 64).save(buffer, "PNG")
    return {"name": "new.png", "mimeType": "image/png", "buffer": buffer.getvalue()}


def test_labels_are_found_and_paged(open_page: Callable[..., Page]) -> None:
    page = open_page("#/labels")
    page.get_by_text("67 labels", exact=True).wait_for()
    assert page.locator(".label-row").count() == 50
    page.get_by_role("button", name="Next").click()
    page.get_by_text("Page 2 of 2").wait_for()
    expect(page.locator(".label-row")).to_have_count(17)
    page.get_by_role("searchbox").fill("RED")
    page.get_by_text("1 label", exact=True).wait_for()
    page.locator(".label-row").click()
    page.locator("#panel").get_by_text("Nearest labels").wait_for()
    assert "label=q-red" in page.url
    page.get_by_role("searchbox").fill("no such thing")
    page.get_by_text("No label contains “no such thing”.").wait_for()


def test_a_label_is_added_found_and_removed(open_page: Callable[..., Page]) -> None:
    page = open_page("#/labels")
    page.get_by_text("67 labels", exact=True).wait_for()
    page.get_by_label("Texts, one per line").fill("Yellow bar 7\nsomething new")
    assert page.get_by_label("Id").input_value() == "yellow-bar-7"
    page.locator(".add input[type=file]").set_input_files(file())
    page.get_by_role("button", name="Add label").click()
    page.locator(".notice.good").get_by_text("“Yellow bar 7” was added").wait_for()
    page.get_by_text("68 labels", exact=True).wait_for()
    page.get_by_role("link", name="Try it").click()
    page.locator(".hit[data-label=yellow-bar-7]").wait_for()
    page.go_back()
    page.get_by_role("searchbox").fill("yellow bar")
    page.get_by_text("1 label", exact=True).wait_for()
    assert page.locator(".label-row .badge").inner_text() == "new"
    assert page.locator(".label-row img").evaluate(DECODED) > 0
    page.get_by_role("button", name="Remove Yellow bar 7").click()
    page.get_by_role("button", name="Cancel").click()
    assert page.locator(".label-row").count() == 1
    page.get_by_role("button", name="Remove Yellow bar 7").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    page.locator(".notice.good").get_by_text("“Yellow bar 7” was removed").wait_for()
    assert page.locator(".label-row").count() == 0


def test_a_taken_id_is_told_beside_the_form(open_page: Callable[..., Page]) -> None:
    page = open_page("#/labels", expected=("4",))
    page.get_by_label("Texts, one per line").fill("red again")
    page.get_by_label("Id").fill("q-red")
    page.get_by_role("button", name="Add label").click()
    page.locator(".add .notice.wrong").wait_for()
    told = page.locator(".add .notice.wrong").inner_text()
    assert "This id is taken" in told
    assert "q-red" in told
    assert "Conflict" not in told
    assert page.get_by_label("Texts, one per line").input_value() == "red again"


def test_the_map_shows_all_labels(open_page: Callable[..., Page]) -> None:
    page = open_page("#/map")
    page.get_by_text("In view: 67 labels").wait_for()
    page.get_by_text("The 40 nearest to the centre").wait_for()
    expect(page.locator(".in-view button")).to_have_count(40)
    canvas = page.locator("canvas")
    assert "Map of 67 labels" in (canvas.get_attribute("aria-label") or "")
    # Something is drawn in more than one colour.
    colours = canvas.evaluate(
        """c => new Set(new Uint32Array(
            c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer)).size"""
    )
    assert colours > 10
    page.get_by_role("button", name="Zoom in").click(click_count=3, delay=250)
    expect(page.locator(".map-side h2")).not_to_have_text("In view: 67 labels")
    canvas.hover()
    page.mouse.wheel(0, 4000)
    page.get_by_role("button", name="Show all").click()
    page.get_by_text("In view: 67 labels").wait_for()
    page.get_by_role("searchbox").fill("red")
    page.get_by_text("1 label highlighted").wait_for()
    page.get_by_text("In view: 1 label (found)", exact=True).wait_for()
    page.locator(".in-view button").click()
    page.locator("#panel").get_by_text("Nearest labels").wait_for()
    assert "label=q-red" in page.url
    assert "q=red" in page.url


# Record the dots, the names and the buttons of the next drawing as [left, top, right, bottom].
DRAWN = """async () => {
  const brush = CanvasRenderingContext2D.prototype;
  const canvas = document.querySelector("#map canvas");
  const [dots, names, original] = [[], [], { arc: brush.arc, fillText: brush.fillText }];
  brush.arc = function (x, y, r, ...rest) {
    dots.push([x - r, y - r, x + r, y + r]);
    original.arc.call(this, x, y, r, ...rest);
  };
  brush.fillText = function (text, x, y) {
    names.push([x, y - 5, x + this.measureText(text).width, y + 5]);
    original.fillText.call(this, text, x, y);
  };
  dispatchEvent(new Event("themechange"));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  Object.assign(brush, original);
  const box = document.querySelector(".zoom");
  const [left, top] = [box.offsetLeft, box.offsetTop];
  const zoom = [left, top, left + box.offsetWidth, top + box.offsetHeight];
  return { dots, names, zoom, size: [canvas.clientWidth, canvas.clientHeight] };
}"""


@pytest.mark.parametrize("phone", [False, True])
def test_names_on_the_map_cover_nothing(open_page: Callable[..., Page], phone: bool) -> None:
    page = open_page("#/map", phone=phone, reduced_motion="reduce")
    page.get_by_text("In view: 67 labels").wait_for()
    drawn = page.evaluate(DRAWN)
    names, (width, height) = drawn["names"], drawn["size"]
    assert len(names) > 5
    assert drawn["dots"]
    for i, (left, top, right, bottom) in enumerate(names):
        assert left >= 0 <= top
        assert right <= width
        assert bottom <= height
        for other in [*drawn["dots"], *names[:i], drawn["zoom"]]:
            apart = other[2] <= left or right <= other[0] or other[3] <= top or bottom <= other[1]
            assert apart, (names[i], other)
    if phone:  # where the map is small, the buttons are below it
        assert drawn["zoom"][1] >= height


def test_a_phone_shows_the_whole_legend_of_the_map(open_page: Callable[..., Page]) -> None:
    page = open_page("#/map", phone=True)
    page.locator(".in-view button").first.wait_for()
    for part in (".groups", ".in-view"):
        clipped = "it => it.scrollWidth > it.clientWidth + 1 || it.scrollHeight > it.clientHeight + 1"
        assert not page.locator(part).evaluate(clipped)
    wide = page.evaluate("innerWidth")
    boxes = "all => all.map((it) => it.getBoundingClientRect())"
    for box in page.locator(".groups button").evaluate_all(boxes):
        assert 0 <= box["left"] <= box["right"] <= wide
    page.get_by_text("tap a point").wait_for()


def test_a_label_is_added_on_a_phone_from_the_first_screen(open_page: Callable[..., Page]) -> None:
    page = open_page("#/labels", phone=True)
    page.locator(".label-row").first.wait_for()
    expect(page.get_by_label("Texts, one per line")).not_to_be_visible()
    opener = page.get_by_role("button", name="Add a label")
    box = opener.bounding_box()
    assert box
    assert box["y"] + box["height"] < page.evaluate("innerHeight")
    opener.tap()
    expect(page.get_by_label("Texts, one per line")).to_be_focused()
    box = page.get_by_role("button", name="Add label", exact=True).bounding_box()
    assert box
    assert box["y"] < 2 * page.evaluate("innerHeight"), "above the list"
    opener.tap()
    expect(page.get_by_label("Texts, one per line")).not_to_be_visible()


def test_a_label_without_a_text_shows_its_id_once(
    open_page: Callable[..., Page], serving: Callable[..., str]
) -> None:
    page = open_page("#/labels", at=serving())
    page.get_by_label("Id").fill("blank-7")
    page.locator(".add input[type=file]").set_input_files(file())
    page.get_by_role("button", name="Add label").click()
    page.locator(".notice.good").wait_for()
    page.get_by_role("searchbox").fill("blank-7")
    page.get_by_text("1 label", exact=True).wait_for()
    assert page.locator("#labels .label-list li").inner_text().count("blank-7") == 1
    page.locator(".label-row").click()
    page.locator("#panel").get_by_text("Nearest labels").wait_for()
    assert page.locator("#panel").inner_text().count("blank-7") == 1


def test_a_point_of_the_map_is_hovered_and_clicked(open_page: Callable[..., Page]) -> None:
    page = open_page("#/map?label=q-blue", reduced_motion="reduce")
    page.locator("#panel").get_by_text("Nearest labels").wait_for()
    page.get_by_role("button", name="Close", exact=True).click()
    page.wait_for_url("**#/map")
    box = page.locator("canvas").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)  # the label of the address was brought into the middle
    page.locator(".tip").wait_for()
    assert "blue things" in page.locator(".tip").inner_text()
    page.mouse.click(x, y)
    page.wait_for_url("**label=q-blue")


def test_a_token_is_asked_for_and_kept_for_the_tab(
    open_page: Callable[..., Page], serving: Callable[..., str]
) -> None:
    address = serving(token="open sesame")
    page = open_page(
        "#/labels",
        at=address,
        expected=("401",),
    )
    page.get_by_label("Texts, one per line").fill("guarded thing")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Add label").click()
    page.locator(".add .notice.wrong").wait_for()
    page.get_by_label("Token").fill("open sesame")
    page.get_by_role("button", name="Add label").click()
    page.locator(".notice.good").get_by_text("“guarded thing” was added").wait_for()
    page.reload()
    assert page.get_by_label("Token").input_value() == "open sesame"
