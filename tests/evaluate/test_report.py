"""The report is complete, escapes catalogue texts, and is one self-contained file."""

from __future__ import annotations

import csv
import html.parser
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from made import made_shop, picture
from mufin import Catalogue, Config, Item, Mufin, fit, save
from mufin.cli import main
from mufin.errors import UsageError
from mufin.evaluate import metrics
from mufin.evaluate.baselines import popularity
from mufin.evaluate.report import SECTIONS, check_report, write_report
from mufin.evaluate.report.attention import attention_section
from mufin.evaluate.report.classifiers import adaptation_section, alpha_section, classifiers_section
from mufin.evaluate.report.data import ReportData
from mufin.evaluate.report.examples import modalities_section
from mufin.evaluate.report.figures import LIGHT, truncate
from mufin.evaluate.report.label_noise import label_noise_section, truth_probability
from mufin.evaluate.report.metrics import category_section
from mufin.evaluate.report.page import Figure, Gallery, Page, Section, Table, Text
from mufin.evaluate.score import encode_points, evaluate, predict, score_predictions
from mufin.presets import PRESETS
from mufin.progress import Progress
from mufin.version import VERSION

EVIL = "<script>alert('x')</script> & \"desk\""


class Seen(html.parser.HTMLParser):
    """The tags, URLs and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.urls: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def outfits(tiny_config: Config) -> tuple[Catalogue, Mufin]:
    """Items as labels: images on both sides, several descriptors per label, markup in a title."""
    shop = made_shop()
    ids = shop.items.ids.to_pylist()
    items = []
    for row in range(len(shop.items)):
        item = shop.items[row]
        texts = [EVIL, "日本語の机 🪑 مكتب"] if row == len(ids) - 1 else [*item.texts, "thing"]
        colour, shape, _ = ids[row].split("-")
        items.append(replace(item, texts=texts, images=[picture(colour, shape), picture(colour, "bar")]))
    pairs = {name: [other for other in ids if other[:5] == name[:5] and other != name] for name in ids}
    splits = {"train": dict(list(pairs.items())[:48]), "test": dict(list(pairs.items())[48:])}
    catalogue = Catalogue.build(items, **splits)
    return catalogue, fit(catalogue, tiny_config.override(["memory.neighbours=5"]), quiet=True)


def report_data(catalogue: Catalogue, model: Mufin, **changed: object) -> ReportData:
    points = catalogue.split("test")
    features = encode_points(model, catalogue.items, points.members, Progress(quiet=True))
    found = predict(model, catalogue, points)
    return replace(
        ReportData(model, catalogue, points, features, found, (0.55, 1.5), "category"),
        **changed,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def written(outfits: tuple[Catalogue, Mufin], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    catalogue, model = outfits
    values = write_report(model, catalogue, path)
    expected = evaluate(model, catalogue)
    same = [name for name in expected if "ms" not in name]
    assert {name: values[name] for name in same} == pytest.approx({name: expected[name] for name in same})
    return path


def test_the_page_has_every_section(written: Path):
    page = written.read_text("utf-8")
    found = re.findall(r'<section id="([\w-]+)"', page)
    assert found == [
        "metrics", "categories", "popularity", "examples", "modalities", "signals", "label-noise",
        "calibration", "attention", "adaptation", "classifiers", "alpha", "latency",
    ]  # fmt: skip
    assert len(found) == len(SECTIONS)
    assert "Expected calibration error" in page
    assert "✓ relevant" in page
    assert "✗ not relevant" in page


def test_catalogue_texts_are_escaped(written: Path):
    seen = Seen(written.read_text("utf-8"))
    assert "script" not in seen.tags
    assert EVIL in " ".join(seen.text.split())
    for svg in (written.parent / "report").glob("*.svg"):
        assert "<script" not in svg.read_text("utf-8")


def test_the_page_is_self_contained(written: Path):
    seen = Seen(written.read_text("utf-8"))
    assert all(url.startswith(("data:", "#")) for url in seen.urls)
    assert {"picture", "source", "img", "table", "figcaption"} <= set(seen.tags)
    assert not {"iframe", "link", "object"} & set(seen.tags)
    assert "prefers-color-scheme: dark" in written.read_text("utf-8")
    assert "@media print" in written.read_text("utf-8")


def test_figures_and_tables_are_written_beside_the_page(written: Path):
    files = {path.name for path in (written.parent / "report").iterdir()}
    for name in ("categories", "popularity", "calibration", "attention-1", "adaptation", "classifiers"):
        assert {f"{name}.svg", f"{name}.png"} <= files
    assert {"metrics.csv", "likely-missing.csv", "likely-wrong.csv", "latency.csv"} <= files
    with (written.parent / "report" / "metrics.csv").open(encoding="utf-8") as file:
        rows = {row["metric"]: row for row in csv.DictReader(file)}
    assert float(rows["P@1"]["low"]) <= float(rows["P@1"]["value"]) <= float(rows["P@1"]["high"])
    assert rows["coverage@5"]["low"] == "–"


def test_the_header_says_what_was_evaluated(
    shop: Catalogue, tiny_model: Mufin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    shop.write(tmp_path / "shop")
    save(tiny_model, tmp_path / "runs" / "shop-7")
    page = tmp_path / "r.html"
    call = ["evaluate", str(tmp_path / "runs" / "shop-7"), str(tmp_path / "shop"), "--report", str(page)]
    assert main([*call, "--quiet"]) == 0
    capsys.readouterr()
    header = page.read_text("utf-8").split("<nav")[0]
    found = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", header))
    assert found["run"].startswith("shop-7 (")
    assert str(tmp_path / "shop") in found["catalogue"]
    assert "60 items, 7 labels" in found["catalogue"]
    assert found["preset"].split(",")[0] in PRESETS
    assert "finetune.epochs=" in found["preset"]
    assert re.fullmatch(r"\d\d \w+ \d{4}, \d\d:\d\d UTC", found["date"])
    assert VERSION in found["version"]


def test_baselines_stand_beside_the_metrics(written: Path, outfits: tuple[Catalogue, Mufin]):
    with (written.parent / "report" / "metrics.csv").open(encoding="utf-8") as file:
        rows = {row["metric"]: row for row in csv.DictReader(file)}
    catalogue, _ = outfits
    points, train = catalogue.split("test"), catalogue.split("train")
    ranked = popularity(train.relevance, len(points), 100, points.exclude)
    expected = metrics.evaluate(ranked, points.relevance, metrics.propensities(train.relevance))
    for name in ("P@1", "nDCG@5", "coverage@5"):
        assert float(rows[name]["Popularity"]) == pytest.approx(expected[name])
        assert 0 <= float(rows[name]["TF-IDF neighbours"]) <= 100


def test_a_likely_missing_label_is_not_called_wrong(written: Path):
    page = written.read_text("utf-8")
    section = page.split('id="label-noise"')[1].split("</section>")[0]
    missing = section.split("Likely wrong:")[0]
    assert missing.count('class="card') == 2 * missing.count('class="query"')
    assert missing.count("not in the truth") >= 1
    assert "✗" not in missing
    assert '"card bad"' not in missing


def test_no_label_is_repeated_in_a_row(outfits: tuple[Catalogue, Mufin]):
    data = report_data(*outfits)
    section = label_noise_section(data)
    galleries = [block for block in section.blocks if isinstance(block, Gallery)]
    assert galleries
    for gallery in galleries:
        first = [row.labels[0].text for row in gallery.rows]
        assert len({*first}) == len(first)
        for row in gallery.rows:
            assert len({(card.text, card.note.split(" · ")[0]) for card in row.labels}) == len(row.labels)
            assert len({card.text for card in row.labels}) == len(row.labels)


def test_every_figure_has_named_axes_and_one_colour_scale(outfits: tuple[Catalogue, Mufin]):
    from matplotlib.figure import Figure as Canvas

    data = report_data(*outfits)
    figures = [block for of in SECTIONS for block in of(data).blocks if isinstance(block, Figure)]
    assert len(figures) >= 7
    scales = set()
    for figure in figures:
        canvas = Canvas(figsize=figure.size, layout="constrained")
        figure.draw(canvas, LIGHT)
        bars = [axes for axes in canvas.axes if axes.get_label() == "<colorbar>"]
        assert len(bars) <= 1
        for axes in canvas.axes:
            if axes in bars:
                continue
            shared = [axes, *axes.get_shared_x_axes().get_siblings(axes)]
            assert any(other.get_xlabel() for other in shared), figure.name
            assert axes.get_ylabel(), figure.name
            scales |= {image.get_clim() for image in axes.get_images()}
    assert len(scales) == 1, "heat maps of a section can be compared"


def test_empty_sections_are_left_out_with_a_reason(tmp_path: Path):
    page = Page(
        "p", [], [Section("a", "A", [Text("no labels")]), Section("b", "B", [Table("t", ["x"], [[1]])])]
    )
    page.write(tmp_path / "p.html")
    written = (tmp_path / "p.html").read_text("utf-8")
    assert re.findall(r'<section id="([\w-]+)"', written) == ["b", "left-out"]
    assert "A: no labels" in written


def test_the_probability_of_a_truth_is_that_of_its_hit(outfits: tuple[Catalogue, Mufin]):
    """A predicted truth has the probability of its hit; scored on its own it ranks the same."""
    catalogue, model = outfits
    data = report_data(catalogue, model)
    rows, labels, chance = truth_probability(data)
    assert len(rows) == data.points.relevance.nnz
    hits = data.predictions
    compared = 0
    for row, label, found in zip(rows, labels, chance, strict=True):
        place = np.flatnonzero(hits.labels[row] == label)
        if len(place):
            assert found == pytest.approx(float(hits.probability[row, place[0]]))
            compared += 1
    assert compared > 10
    few = replace(
        hits, labels=hits.labels[:, :1], score=hits.score[:, :1], probability=hits.probability[:, :1]
    )
    again = truth_probability(replace(data, predictions=few))[2]  # most truths are scored on their own
    order = [(np.argsort(chance[rows == r]), np.argsort(again[rows == r])) for r in np.unique(rows)]
    assert all(np.array_equal(a, b) for a, b in order)


def test_attention_is_shown_if_the_model_has_it(outfits: tuple[Catalogue, Mufin]):
    catalogue, model = outfits
    section = attention_section(report_data(catalogue, model))
    assert "adds up to 1" in section.blocks[0].text  # type: ignore[union-attr]
    assert section.blocks[1].caption.startswith("Attention")  # type: ignore[union-attr]


def test_labels_with_one_descriptor_show_cosines_instead(shop: Catalogue, tiny_model: Mufin):
    section = attention_section(report_data(shop, tiny_model))
    assert "one descriptor each" in section.blocks[0].text  # type: ignore[union-attr]
    assert section.blocks[1].caption.startswith("Cosine")  # type: ignore[union-attr]


def test_sections_explain_what_a_simple_model_lacks(shop: Catalogue, tiny_config: Config):
    settings = ["rank.cross=none", "rank.alpha=one", "modalities=text", "finetune.epochs=1"]
    model = fit(shop, tiny_config.override(settings), quiet=True)
    data = report_data(shop, model, category="colour")
    assert "no column “colour”" in category_section(data).blocks[0].text  # type: ignore[union-attr]
    assert "no cross-attention" in attention_section(data).blocks[0].text  # type: ignore[union-attr]
    assert "x̂² is x̂¹" in adaptation_section(data).blocks[0].text  # type: ignore[union-attr]
    assert "reads text only" in modalities_section(data).blocks[0].text  # type: ignore[union-attr]
    assert "α is 1" in alpha_section(data).blocks[1].text  # type: ignore[union-attr]
    assert "clusters" in classifiers_section(data).blocks[0].caption  # type: ignore[union-attr]


def test_labels_unknown_to_the_model_are_tolerated(shop: Catalogue, tiny_model: Mufin, tmp_path: Path):
    more = [*(shop.labels[i] for i in range(len(shop.labels))), Item("q-new", ["new things"])]
    ids = shop.items.ids.to_pylist()
    relation = {name: ["q-new", f"q-{name.split('-')[0]}"] for name in ids[-6:]}
    catalogue = Catalogue.build([shop.items[i] for i in range(len(ids))], more, test=relation)
    write_report(tiny_model, catalogue, tmp_path / "r.html")
    assert (tmp_path / "r.html").stat().st_size < 15_000_000


def test_invalid_report_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UsageError, match="ends in .html"):
        check_report(tmp_path / "report.pdf")
    with pytest.raises(UsageError, match="does not exist"):
        check_report(tmp_path / "none" / "report.html")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'mufin\[report\]'"):
        check_report(tmp_path / "report.html")


def test_rendering_is_deterministic_and_escaped(tmp_path: Path):
    def draw(canvas, theme) -> None:
        canvas.subplots().bar(["日本語 $x$", "<b>"], [1, 2], color=theme.good)

    figure = Figure("f", "caption", 'an "alt"', draw)
    table = Table("t", ["name", "n"], [["=1+1", 1000], ["x", 0.25]])
    page = Page("<title>", [("a", "b")], [Section("s", "S", [Text("1 < 2"), figure, table])])
    page.write(tmp_path / "a.html")
    first = (tmp_path / "a.html").read_bytes()
    assert b"&lt;title&gt;" in first
    assert b"1 &lt; 2" in first
    assert b"1,000" in first
    fresh = replace(figure)  # rendered again
    assert fresh.rendered.light == figure.rendered.light
    assert "日本語 $x$" in figure.rendered.light.decode()
    assert figure.rendered.light != figure.rendered.dark


def test_truncate():
    assert truncate("a\n b") == "a b"
    assert len(truncate("x" * 100, 20)) == 20


def test_predictions_have_probabilities(shop: Catalogue, tiny_model: Mufin):
    found = predict(tiny_model, shop, shop.split("test"))
    assert found.probability.shape == found.labels.shape
    there = found.labels >= 0
    assert ((found.probability[there] > 0) & (found.probability[there] < 1)).all()
    assert score_predictions(found, shop, shop.split("test"), (0.55, 1.5))["points"] == len(
        shop.split("test")
    )
    assert torch.from_numpy(found.probability).isfinite().all()
