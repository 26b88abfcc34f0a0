"""Comparing models, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mufin import Catalogue, Config, Mufin, fit, save
from mufin.cli import main
from mufin.errors import UsageError
from mufin.evaluate.compare import compare
from mufin.evaluate.score import evaluate


@pytest.fixture(scope="module")
def weak(shop: Catalogue, tiny_config: Config) -> Mufin:
    return fit(shop, tiny_config.override(["pretrain.epochs=0", "finetune.epochs=0"]), quiet=True)


@pytest.fixture(scope="module")
def folders(
    shop: Catalogue, tiny_model: Mufin, weak: Mufin, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Path]:
    here = tmp_path_factory.mktemp("compare")
    shop.write(here / "shop")
    save(tiny_model, here / "good")
    save(weak, here / "weak")
    return here / "weak", here / "good", here / "shop"


def test_runs_are_compared_with_the_first(shop: Catalogue, tiny_model: Mufin, weak: Mufin):
    found = compare([("weak", weak), ("good", tiny_model)], shop)
    assert found.base == "weak"
    assert found.runs["weak"].against == {}
    expected = evaluate(tiny_model, shop)
    good = found.runs["good"]
    assert good.metrics["P@1"] == pytest.approx(expected["P@1"])
    difference = good.against["P@1"]
    assert difference.value == pytest.approx(expected["P@1"] - found.runs["weak"].metrics["P@1"])
    assert difference.low <= difference.value <= difference.high
    assert sum(good.bins) == pytest.approx(expected["R@10"])
    assert set(good.categories) == {"bar", "circle", "square"}
    assert found.category_sizes == {"bar": 4, "circle": 4, "square": 4}
    assert set(found.category_labels.values()) == {"–"}  # the labels of the shop are search terms


def test_a_duplicate_run_is_rejected(shop: Catalogue, tiny_model: Mufin):
    with pytest.raises(UsageError, match="given twice"):
        compare([("a", tiny_model), ("a", tiny_model)], shop)


def test_the_command(folders: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    weak, good, data = folders
    report = tmp_path / "compare.html"
    call = ["compare", str(weak), str(good), "--catalogue", str(data), "--quiet"]
    assert main([*call, "--report", str(report)]) == 0
    out = capsys.readouterr().out
    assert "P@1" in out
    assert "difference" in out
    assert "[" in out
    page = report.read_text("utf-8")
    for name in ("metrics", "differences", "categories", "popularity"):
        assert f'<section id="{name}"' in page
    assert (tmp_path / "compare" / "categories.png").is_file()
    assert (tmp_path / "compare" / "differences-1.csv").is_file()
    assert main([*call, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"] == "weak"
    assert 0 < found["runs"]["good"]["differences"]["P@5"]["p"] <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["good"], "cannot be compared"),
        (["good", "weak", "--split", "none"], "no split 'none'"),
        (["good", "weak", "--propensity", "x"], "expected two numbers"),
        (["good", "weak", "--report", "page.txt"], "ends in .html"),
        (["good", "good"], "given twice"),
    ],
)
def test_invalid_arguments(
    folders: tuple[Path, Path, Path],
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
):
    here, data = folders[0].parent, folders[2]
    named = [str(here / a) if a in ("good", "weak") else a for a in arguments]
    assert main(["compare", *named, "--catalogue", str(data), "--quiet"]) == 2
    assert said in capsys.readouterr().err


def test_evaluate_writes_a_report(
    folders: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    _, good, data = folders
    report = tmp_path / "r.html"
    assert main(["evaluate", str(good), str(data), "--report", str(report), "--quiet"]) == 0
    assert f"The report is in {report}" in capsys.readouterr().out
    assert report.is_file()
    assert main(["evaluate", str(good), str(data), "--report", str(report), "--fitb", "q"]) == 2
    assert "use one of them" in capsys.readouterr().err
