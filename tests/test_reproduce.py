"""The commands of docs/reproduce.md parse, and run on synthetic data with the schemas of the paper."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from made_papers import MADE, true_encoders
from mufin.cli import app, main
from mufin.config import Config, differences

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))
FENCE = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEED_RAW_DATA = {"import", "fetch-images"}  # their output is replaced by synthetic catalogues
FEW_STEPS = [
    "pretrain.epochs=1", "pretrain.batch=16", "finetune.epochs=1", "finetune.batch=16", "run.batches=2",
    "run.device=cpu",
]  # fmt: skip


def commands() -> list[list[str]]:
    """The commands of the page as lists of words, without `mufin`."""
    blocks = "".join(FENCE.findall((ROOT / "docs" / "reproduce.md").read_text("utf-8")))
    lines = [shlex.split(line) for line in blocks.replace("\\\n", " ").splitlines() if line.strip()]
    assert all(words[0] == "mufin" for words in lines)
    return [words[1:] for words in lines]


def main_run(config: str) -> list[str]:
    """The first training command with this configuration."""
    return next(words for words in commands() if words[0] == "train" and f"configs/{config}.toml" in words)


def test_there_are_commands_for_every_table():
    found = [words[0] for words in commands()]
    assert found.count("train") == 15
    assert found.count("evaluate") >= 6
    assert found.count("compare") == 2
    assert found.count("import") == 3


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_parses(words: list[str]):
    name, *arguments = words
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(arguments))
    settings = [arguments[i + 1] for i, word in enumerate(arguments) if word == "--set"]
    if "--config" in arguments:
        file = ROOT / arguments[arguments.index("--config") + 1]
        variant = arguments[arguments.index("--variant") + 1] if "--variant" in arguments else None
        config = Config.read(file)
        config.override(settings) if variant is None else config.variant(variant, settings)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_differ_from_the_paper_only_as_documented(path: Path):
    changed = {
        "mm-amazontitles-300k": [],
        "polyvore-disjoint": ["rank.alpha=one", "finetune.epochs=10"],
        "a2q-4m": [
            "vision.train_layers=0", "embed.projection=linear", "pretrain.epochs=13", "pretrain.refresh=4",
            "retrieve.search=approximate", "finetune.epochs=2", "run.pictures=false",
        ],
    }  # fmt: skip
    assert differences(Config.read(path), Config.preset("paper")) == changed[path.stem]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with configs/ and an empty data/."""
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)  # pytest would keep 600 MB per test


def run(words: list[str], settings: list[str]) -> None:
    extra = [part for setting in settings for part in ("--set", setting)] if words[0] == "train" else []
    assert main([*words, *extra, *([] if words[0] == "check" else ["--quiet"])]) == 0, words


def test_every_command_runs_on_synthetic_data(here: Path, tiny_encoders: tuple[str, str]):
    """All tables and reports, with tiny encoders."""
    for name, make in MADE.items():
        make(here / name, 1 / 30_000)
    text, vision = tiny_encoders
    small = [f"text.model={text}", f"vision.model={vision}", "embed.dim=16", *FEW_STEPS]
    for words in commands():
        if words[0] not in NEED_RAW_DATA:
            run(words, small)
    assert {path.name for path in here.glob("*.html")} == {"ablations.html", "categories.html", "mufin.html"}
    assert len(list(here.glob("runs/*/*/mufin.json"))) == 15


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    folder = tmp_path_factory.mktemp("true")
    yield true_encoders(folder)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("config", "data", "vision", "asked"),
    [
        ("mm-amazontitles-300k", "data/mm-amazontitles-300k", "vit", []),
        ("polyvore-disjoint", "data/polyvore-disjoint", "vit", ["--fitb", "fitb_test"]),
        ("polyvore-disjoint", "data/polyvore-disjoint", "resnet", ["--fitb", "fitb_test"]),
        ("a2q-4m", "data/a2q", "vit", []),
    ],
)
def test_the_architectures_of_the_paper_train_and_predict(
    here: Path,
    encoders: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    config: str,
    data: str,
    vision: str,
    asked: list[str],
):
    MADE[data](here / data, 1 / 1000)
    models = [f"text.model={encoders['distilbert']}", f"vision.model={encoders[vision]}"]
    words = main_run(config)
    run(words, [*models, *FEW_STEPS])
    folder = words[words.index("-o") + 1]
    capsys.readouterr()
    assert main(["evaluate", folder, data, *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 <= found["accuracy" if asked else "P@1"] <= 100
