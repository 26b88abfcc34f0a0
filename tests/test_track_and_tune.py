"""The page on tracking and tuning: its two programs run as they stand there, on a tiny shop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mufin import Catalogue, Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "track-and-tune.md"
TRACKER, SEARCH = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shop: Catalogue, tiny_config: Config) -> Path:
    """A folder with a catalogue `shop`; the preset `fast` has tiny encoders."""
    shop.write(tmp_path / "shop")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Config, "preset", lambda name: tiny_config)
    return tmp_path


def test_a_tracker_of_one_s_own(in_folder: Path) -> None:
    assert len(TRACKER.splitlines()) <= 22
    exec(TRACKER, {})
    lines = [line.split(",") for line in (in_folder / "log.csv").read_text().splitlines()]
    assert {line[1] for line in lines} == {"pretrain", "finetune"}
    assert {line[4] for line in lines} == {"loss", "validation P@1"}
    assert (in_folder / "runs" / "tracked" / "mufin.json").exists()


def test_a_search_for_settings(in_folder: Path) -> None:
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names: dict[str, Any] = {}
    exec(SEARCH.replace("n_trials=20", "n_trials=4"), names)
    study = names["study"]
    assert {*study.best_params} == {"finetune.lr", "embed.input_dropout"}
    assert len(study.trials) == 4
    assert 0 <= study.best_value <= 100
