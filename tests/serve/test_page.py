"""The page's view Ask in a real browser: find, drop, rank, explain, wait."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Response, Route, expect

from made import picture

DECODED = "image => image.decode().then(() => image.naturalWidth)"

pytest_plugins = ["browsing"]

DROP = """async ([data, kind]) => {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], "mine.png", { type: "image/png" }));
  const both = { bubbles: true, cancelable: true };
  if (kind === "paste")
    document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: files, ...both }));
  else for (const name of ["dragover", "drop"])
    document.body.dispatchEvent(new DragEvent(name, { dataTransfer: files, ...both }));
}"""


def png(colour: str = "red") -> str:
    buffer = io.BytesIO()
    picture(colour, "circle", 64).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def names(page: Page) -> list[str]:
    page.wait_for_selector(".hit .name")
    return page.locator(".hit .name").all_inner_texts()


def test_the_empty_page_invites(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_role("heading", name="Try it out.").wait_for()
    page.locator(".tiles a").first.click()
    assert len(names(page)) == 10
    assert "item=" in page.url
    page.go_back()
    page.get_by_role("heading", name="Try it out.").wait_for()


@pytest.mark.parametrize("phone", [False, True])
def test_the_cards_fill_their_rows(open_page: Callable[..., Page], phone: bool) -> None:
    page = open_page(phone=phone)
    page.locator(".tiles a").first.wait_for()
    lefts = page.locator(".tiles li").evaluate_all("all => all.map((it) => it.getBoundingClientRect().left)")
    assert len(lefts) in (4, 8, 12)
    assert len(lefts) % len({*lefts}) == 0


def test_an_unlikely_first_label_is_called_not_good(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_role("heading", name="Try it out.").wait_for()
    for words in ("xyzzy qwrtz", "seven of nine"):
        page.locator("#asked").fill(words)
        with page.expect_response("**/v1/recommend") as answered:
            page.get_by_role("button", name="Rank labels").click()
        assert first_probability(answered.value) < 0.2
        page.wait_for_url(f"**text={words.replace(' ', '+')}")
        expect(page.locator(".results")).not_to_have_attribute("aria-busy", "true")
        notice = page.locator(".notice.unsure")
        expect(notice).to_have_count(1)
        assert names(page)[0] in notice.inner_text()
        assert "\N{NO-BREAK SPACE}%" in notice.inner_text()
        assert notice.bounding_box()["y"] < page.locator(".hit").first.bounding_box()["y"]  # type: ignore[index]
        assert page.locator("#say").inner_text().startswith("No good label.")


def test_a_likely_first_label_comes_without_a_notice(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_role("combobox", name="What should be labelled?").type("blue circle 4")
    with page.expect_response("**/v1/recommend") as answered:
        page.get_by_role("option").first.click()
    assert first_probability(answered.value) > 0.2
    assert len(names(page)) == 10
    expect(page.locator(".notice.unsure")).to_have_count(0)


def first_probability(answer: Response) -> float:
    """The probability of the first hit."""
    found: float = answer.json()["results"][0]["hits"][0]["probability"]
    return found


def test_an_item_is_found_while_typing(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_role("combobox", name="What should be labelled?").type("BLUE circle 4")
    option = page.get_by_role("option")
    option.first.wait_for()
    assert option.count() == 1
    assert option.locator("img").evaluate(DECODED) == 64
    option.click()
    assert "item=blue%2Fcircle-4" in page.url
    names(page)
    assert page.locator(".item-card img").count() == 2
    assert "of 2 known labels found" in page.locator(".hits-head").inner_text()


def test_the_truth_is_marked_in_words(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?item=red%2Fcircle-4&k=50")
    names(page)
    marked = page.locator("li.relevant")
    assert sorted(marked.locator(".hit").evaluate_all("all => all.map((hit) => hit.dataset.label)")) == [
        "q-circle", "q-red",
    ]  # fmt: skip
    assert marked.locator(".badge").all_inner_texts() == ["relevant"] * 2
    assert page.locator(".hit img").count() >= 2


def test_bars_are_as_long_as_hits_are_probable(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?item=red%2Fcircle-4")
    with page.expect_response("**/v1/recommend") as answered:
        page.reload()
    hits = answered.value.json()["results"][0]["hits"]
    names(page)
    page.wait_for_timeout(400)  # they grow
    found = page.locator(".hit .bar").evaluate_all(
        """bars => bars.map((bar) => {
            const wide = (element) => element.getBoundingClientRect().width;
            const pieces = [...bar.querySelectorAll(".part")].map((part) => [part.title, wide(part)]);
            return [wide(bar.firstChild) / wide(bar), pieces];
        })"""
    )
    for (length, pieces), hit in zip(found, hits, strict=True):
        assert length == pytest.approx(max(hit["probability"], 0.004), abs=0.02)
        raising = [name for name, value in hit["parts"].items() if value >= 0.005]
        assert [title.split(" +")[0] for title, _ in pieces] == raising


def test_parts_start_at_a_marked_zero(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?item=red%2Fcircle-4")
    with page.expect_response("**/v1/recommend") as answered:
        page.reload()
    hits = answered.value.json()["results"][0]["hits"]
    names(page)
    for place in (0, len(hits) - 1):
        parts = {name: value for name, value in hits[place]["parts"].items() if abs(value) >= 0.005}
        page.locator(".hit").nth(place).click()
        rows = page.locator(".panel .score tbody tr")
        expect(rows).to_have_count(len(parts))
        assert "−0.00" not in page.locator(".panel").inner_text()
        sides = rows.evaluate_all(
            """rows => rows.map((row) => {
                const [axis, part] = [".axis", ".axis .part"].map((c) => row.querySelector(c));
                const [whole, piece] = [axis.getBoundingClientRect(), part.getBoundingClientRect()];
                const share = parseFloat(axis.style.getPropertyValue("--zero")) / 100;
                const zero = whole.left + whole.width * share;
                return [Math.round(piece.left - zero), Math.round(piece.right - zero)];
            })"""
        )
        for (left, right), value in zip(sides, parts.values(), strict=True):
            assert (abs(left) <= 1) if value > 0 else (abs(right) <= 1)
        page.keyboard.press("Escape")


def test_a_picture_is_dropped_and_another_pasted(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_role("heading", name="Try it out.").wait_for()
    page.evaluate(DROP, [png(), "drop"])
    assert len(names(page)) == 10
    assert page.locator(".chips img").count() == 1
    with page.expect_request("**/v1/recommend") as sent:
        page.evaluate(DROP, [png("blue"), "paste"])
    assert [len(item["images"]) for item in sent.value.post_data_json["items"]] == [2]
    page.get_by_role("button", name="Remove image 2").click()
    expect(page.locator(".chips img")).to_have_count(1)
    page.go_back()  # the pictures of an earlier question are still there
    expect(page.locator(".chips img")).to_have_count(2)


def test_what_is_no_picture_is_said_kindly(open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.get_by_role("heading", name="Try it out.").wait_for()
    page.evaluate(DROP, [base64.b64encode(b"not a picture").decode(), "drop"])
    assert "“mine.png” cannot be read as an image" in page.locator(".notice.wrong").inner_text()


def test_several_texts_and_a_chosen_file_are_one_question(open_page: Callable[..., Page]) -> None:
    page = open_page()
    box = page.get_by_role("combobox")
    box.fill("red")
    page.get_by_role("button", name="Add text").click()
    box.fill("circle")
    with page.expect_request("**/v1/recommend") as sent:
        page.locator("input[type=file]").first.set_input_files(
            {"name": "a.png", "mimeType": "image/png", "buffer": base64.b64decode(png())}
        )
    (item,) = sent.value.post_data_json["items"]
    assert item["texts"] == ["red", "circle"]
    assert len(item["images"]) == 1
    names(page)


def test_a_hit_explains_itself(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?item=red%2Fcircle-4&k=50")
    names(page)
    page.locator(".hit[data-label=q-circle]").click()
    panel = page.locator("#panel")
    panel.locator(".heat").wait_for()
    # The query is a text and two images, the label two texts and an image.
    cells = panel.locator(".heat tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => Number(cell.innerText)))"
    )
    assert [len(row) for row in cells] == [3, 3, 3]
    assert all(abs(sum(row) - 1) < 0.02 for row in cells)
    assert panel.locator(".heat tbody th img").count() == 2
    assert panel.locator(".heat thead th img").count() == 1
    headings = panel.get_by_role("heading").all_inner_texts()
    assert headings[:3] == ["circle things", "Why this label", "Cross-attention"]
    assert re.match(r"α = [01]\.\d\d", headings[3])
    assert headings[4:] == ["Nearest labels", "Training examples"]
    broken = "images => images.filter((image) => image.complete && !image.naturalWidth).length"
    assert panel.locator("img").evaluate_all(broken) == 0
    panel.locator(".nearest button").first.click()
    expect(page.locator("#panel-title")).not_to_have_text("circle things")
    page.go_back()
    expect(page.locator("#panel-title")).to_have_text("circle things")
    panel.locator(".tiles a").first.click()
    page.wait_for_url("**item=*circle*")
    page.locator("#panel").wait_for(state="hidden")


def test_an_address_opens_the_same_view(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?text=red&text=circle&k=5&label=q-red")
    page.locator("#panel .heat").wait_for()
    assert len(names(page)) == 5
    assert page.locator(".chip").inner_text().strip() == "red"
    assert page.get_by_role("combobox").first.input_value() == "circle"
    page.locator("#k").select_option("20")
    expect(page.locator(".hit")).to_have_count(20)
    assert "k=20" in page.url
    missing = open_page("#/ask?pictures=7")
    missing.locator(".notice").get_by_text("The images are missing").wait_for()


def test_a_busy_server_is_asked_again(open_page: Callable[..., Page]) -> None:
    page = open_page(expected=("429",))
    page.get_by_role("heading", name="Try it out.").wait_for()
    refused = []

    def refuse_once(route: Route) -> None:
        if refused:
            route.continue_()
            return
        refused.append(1)
        problem = {"type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": "full"}
        route.fulfill(
            status=429,
            headers={"Retry-After": "2"},
            content_type="application/problem+json",
            body=json.dumps(problem),
        )

    page.route("**/v1/recommend", refuse_once)
    page.get_by_role("combobox").fill("red circle")
    page.get_by_role("button", name="Rank labels").click()
    page.locator(".notice.busy").wait_for()
    assert "The server is busy" in page.locator(".notice.busy").inner_text()
    assert "Retrying in" in page.locator(".notice.busy").inner_text()
    assert "The server is busy" in page.locator("#say").inner_text()
    assert len(names(page)) == 10
    assert page.locator(".notice.busy").count() == 0


def test_a_server_that_is_away_is_waited_for(open_page: Callable[..., Page]) -> None:
    page = open_page(expected=("Failed to load resource: net::ERR_INTERNET_DISCONNECTED",))
    page.get_by_role("list", name="Items to try").wait_for()  # no request is under way
    page.context.set_offline(True)
    page.get_by_role("combobox").fill("red circle")
    page.keyboard.press("Enter")
    page.get_by_text("The server does not respond").first.wait_for()
    page.context.set_offline(False)
    page.get_by_role("button", name="Retry now").click()
    assert len(names(page)) == 10


def test_an_unknown_item_is_a_sentence(open_page: Callable[..., Page]) -> None:
    page = open_page("#/ask?item=nothing", expected=("404",))
    page.locator(".notice.wrong").wait_for()
    assert "nothing" in page.locator(".notice.wrong").inner_text()


def test_without_a_catalogue_words_are_offered(
    open_page: Callable[..., Page], serving: Callable[..., str]
) -> None:
    page = open_page(at=serving(catalogue=False))
    page.locator(".try a").first.click()
    assert len(names(page)) == 10
    page.locator(".hit").first.click()
    page.locator("#panel .heat").wait_for()
    assert page.get_by_role("button", name="Random item").count() == 0
