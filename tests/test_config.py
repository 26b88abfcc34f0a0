"""Settings: presets, TOML both ways, overrides, and one clear sentence for whatever cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from mufin import Config, MufinError
from mufin.config import VERSION
from mufin.errors import ConfigError
from mufin.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_go_through_toml_and_back(name: str, tmp_path: Path) -> None:
    config = Config.preset(name)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), "utf-8")
    assert Config.read(path) == config


def test_paper_preset_has_the_papers_values() -> None:
    paper = Config.preset("paper")
    assert paper == Config()
    assert (paper.embed.dim, paper.embed.projection, paper.text.max_length) == (192, "maxpool", 32)
    one, four = paper.pretrain, paper.finetune
    assert (one.epochs, one.batch, one.lr, one.margin, one.hard_similarity) == (200, 1024, 2e-4, 0.2, 0.9)
    assert (one.positives, one.negatives, one.loss, one.warmup) == (2, 3, "margin", 1000)
    assert (four.epochs, four.batch, four.lr, four.margin, four.loss) == (20, 200, 5e-5, 0.5, "cosine")
    assert (four.positives, four.negatives) == (2, 12)
    assert (paper.rank.beta, paper.rank.alpha, paper.rank.cross) == (0.7, "learnt", "attention")
    assert paper.memory.neighbours == 0
    assert (paper.retrieve.shortlist, paper.retrieve.entries) == (100, ["bag", "centroid"])


def test_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'papr'.*paper, best, fast"):
        Config.preset("papr")


def test_settings_of_one_config_do_not_leak_into_another() -> None:
    changed = Config()
    changed.rank.beta = 0.1
    changed.retrieve.entries.append("vector")
    assert Config().rank.beta == 0.7
    assert Config().retrieve.entries == ["bag", "centroid"]


@pytest.mark.parametrize(
    ("assignment", "section", "key", "value"),
    [
        ("rank.beta=0.5", "rank", "beta", 0.5),
        ("rank.beta = learnt", "rank", "beta", "learnt"),
        ("text.train_layers=all", "text", "train_layers", "all"),
        ('text.train_layers="all"', "text", "train_layers", "all"),
        ("text.train_layers=0", "text", "train_layers", 0),
        ("text.model=some/name=with=signs", "text", "model", "some/name=with=signs"),
        ("text.model='quoted'", "text", "model", "quoted"),
        ('retrieve.entries=["vector"]', "retrieve", "entries", ["vector"]),
        ("run.tensorboard=true", "run", "tensorboard", True),
        ("pretrain.lr=1e-3", "pretrain", "lr", 1e-3),
        ("vision.size=64", "vision", "size", 64),
    ],
)
def test_override(assignment: str, section: str, key: str, value: object) -> None:
    changed = Config().override([assignment])
    assert getattr(getattr(changed, section), key) == value
    assert Config.parse(Config().model_dump(), "copy") == Config()


def test_overrides_apply_in_order_and_leave_the_original_alone() -> None:
    config = Config()
    assert config.override(["seed=1", "modalities=text", "seed=2"]).seed == 2
    assert (config.seed, config.modalities) == (0, "both")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("text.modle=x", "'text.modle'.*known here: model, train_layers, max_length"),
        ("txt.model=x", "'txt'.*known here: version, seed, modalities, text, vision"),
        ("=5", "unknown setting ''"),
        ("seed", "expected section.key=value"),
        ("rank.beta.x=1", "beta is a value, not a section"),
        ("text=3", "'text'"),
        ("rank.beta=nan", "'rank.beta'.*finite"),
        ("rank.beta=1.5", "'rank.beta'.*1.5"),
        ("rank.beta=", "'rank.beta'"),
        ("rank.cross=other", "'rank.cross'.*attention.*concat.*none"),
        ("pretrain.lr=0", "'pretrain.lr'.*greater than 0"),
        ("pretrain.lr=inf", "'pretrain.lr'.*finite"),
        ("finetune.margin=nan", "'finetune.margin'.*finite"),
        ("pretrain.epochs=1.5", "'pretrain.epochs'"),
        ("text.train_layers=-1", "'text.train_layers'"),
        ("text.train_layers=most", "'text.train_layers'.*'most'"),
        ("retrieve.entries=[]", "'retrieve.entries'"),
        ('retrieve.entries=["bags"]', "'retrieve.entries'.*bag.*vector.*centroid"),
        ("embed.heads=5", "heads = 5 does not divide dim = 192"),
        ("run.validation=1", "'run.validation'"),
        ("seed=-1", "'seed'"),
        ("modalities=video", "'modalities'.*both.*text.*image"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(assignment: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Config().override([assignment])
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 250
    assert isinstance(caught.value, MufinError)


@pytest.mark.parametrize("attention", ["none", "sum"])
def test_raw_bags_need_something_that_makes_the_vector(attention: str) -> None:
    with pytest.raises(ConfigError, match=f'bag = "raw" needs an A_S .*attention = "{attention}"'):
        Config().override(["embed.bag=raw", f"embed.attention={attention}"])
    assert Config().override(["embed.bag=raw", "embed.attention=feedforward"]).embed.bag == "raw"


@pytest.mark.parametrize("version", [VERSION + 1, VERSION + 1.0])
def test_newer_version_is_refused(version: float, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(f"version = {version}\nfuture = 1\n")
    with pytest.raises(ConfigError, match="new.toml: settings of version .*update mufin"):
        Config.read(path)


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.toml: cannot be read"):
        Config.read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        Config.read(tmp_path)
    for name, content, said in (
        ("latin.toml", b'[text]\nmodel = "caf\xe9"\n', "not UTF-8"),
        ("broken.toml", b"[text\nmodel = 1", "not TOML"),
        ("typo.toml", b"[text]\nmodle = 'x'\n", "typo.toml: unknown setting 'text.modle'"),
        ("deep.toml", b"[rank.beta]\nx = 1\n", "'rank.beta'"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=said) as caught:
            Config.read(path)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_empty_file_is_the_paper(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    assert Config.read(path) == Config.preset("paper")
