"""Every sample: import → check → train → evaluate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mufin.data.check import check

if TYPE_CHECKING:
    from mufin.config import Config

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
AMAZON = SAMPLES / "amazon"
TABLE = SAMPLES / "table"

Mufin = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["amazon", AMAZON / "meta-2014.json", "--curate", "mm-amazontitles"], {"bad lines": 2}),
        (["amazon", AMAZON / "meta-2018.json.gz", "--curate", "mm-amazontitles"], {"bad lines": 3}),
        (
            ["amazon", AMAZON / "meta-2023.jsonl", "--curate", "mm-amazontitles", "--test", "0.2"],
            {"bad lines": 0},
        ),
        (["xc", SAMPLES / "xc"], {"filter pairs": 40}),
        (["xc", SAMPLES / "released"], {"filter pairs": 0}),
        (["polyvore", SAMPLES / "polyvore"], {"items in train and test": 0}),
        (
            ["table", TABLE / "products.csv", "--text", "title", "--image", "photo", "--labels", "tags"],
            {"bad rows": 9},
        ),
        (["dataset", TABLE / "saved", "--text", "caption", "--image", "image", "--labels", "tags"], {}),
    ],
    ids=["amazon-2014", "amazon-2018", "amazon-2023", "xc", "released-mufin", "polyvore", "csv", "dataset"],
)
def test_round_trip(
    mufin: Mufin, tmp_path: Path, tiny_config: Config, arguments: list[object], expected: dict[str, int]
) -> None:
    settings = tmp_path / "tiny.toml"
    settings.write_text(tiny_config.to_toml(), "utf-8")
    folder, run = tmp_path / "shop", tmp_path / "run"
    imported = mufin("import", *arguments, "-o", folder)
    assert {name: imported["counts"][name] for name in expected} == expected
    report = check(folder)
    assert report.usable, report.problems
    outfits = ["--sets", "train_outfits"] if arguments[0] == "polyvore" else []
    assert mufin("train", folder, "-o", run, "--config", settings, *outfits)["labels"] > 10
    if outfits:
        answers = mufin("evaluate", run, folder, "--fitb", "fitb_test")
        assert set(answers) == {"accuracy", "questions"}
        assert answers["questions"] == imported["statistics"]["test"] == 3
    else:
        scores = mufin("evaluate", run, folder)
        assert 0 < scores["R@100"] <= 100
        assert report.splits["test"].points == imported["statistics"]["test"]
        assert report.splits["train"].points == imported["statistics"]["N"]
        assert report.labels == imported["statistics"]["L"]
