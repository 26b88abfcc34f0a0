"""Settings: presets, TOML both ways, overrides, and one clear sentence for whatever cannot be used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomli_w

from mufin import Config, MufinError
from mufin.config import VERSION, differences
from mufin.config_checks import parse_toml_value
from mufin.config_docs import explain, groups
from mufin.errors import ConfigError
from mufin.presets import PRESETS, VARIANTS


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


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_changes_the_paper_s_settings_as_listed(name: str, tmp_path: Path) -> None:
    paper = Config.preset("paper")
    variant = paper.variant(name)
    assert variant == paper.override(VARIANTS[name])
    assert {line.partition("=")[0] for line in differences(variant, paper)} <= {
        line.partition("=")[0] for line in VARIANTS[name]
    }
    assert paper == Config.preset("paper")
    path = tmp_path / "variant.toml"
    path.write_text(variant.to_toml(), "utf-8")
    assert Config.read(path) == variant


def test_no_two_variants_are_the_same() -> None:
    found = [Config.preset("paper"), *(Config.preset("paper").variant(name) for name in VARIANTS)]
    assert all(one != other for i, one in enumerate(found) for other in found[:i])


def test_the_page_on_the_paper_lists_every_variant() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "paper.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| [^|]+ \| `([a-z][a-z0-9-]+)` \| (.+) \|$", page, re.MULTILINE))
    assert list(rows) == list(VARIANTS)
    for name, said in rows.items():
        same = "the same with " if name.endswith("-tuned") else ""
        settings = VARIANTS[name][-2:] if same else VARIANTS[name]
        assert said == f"{same}`{' '.join(settings)}`"


def test_a_variant_can_be_changed_further() -> None:
    config = Config.preset("fast").variant("two-blocks", ["rank.cross=attention", "seed=3"])
    assert (config.embed.blocks, config.rank.blocks, config.rank.cross, config.seed) == (2, 2, "attention", 3)
    assert Config().variant("clip", ["text.model=here"]).text.model == "here"


def test_variants_that_cannot_be_had() -> None:
    with pytest.raises(ConfigError, match="unknown variant 'no-a'; choose one of: random-positives, .*no-as"):
        Config().variant("no-a")
    with pytest.raises(ConfigError, match="variant 'no-ac' changes nothing"):
        Config.preset("fast").variant("no-ac")
    with pytest.raises(ConfigError, match="'finetune.encoder_epochs' has no effect without"):
        Config.preset("fast").variant("lite")


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


def test_none_unsets_a_setting_that_may_be_missing() -> None:
    set_ = Config.preset("best").override(["run.batches=3", "finetune.encoder_lr=none"])
    assert set_.finetune.encoder_lr is None
    assert set_.override(["run.batches = none"]).run.batches is None
    assert Config.preset("fast").override(["vision.size=none"]).vision.size is None
    assert Config().override(["rank.cross=none"]).rank.cross == "none"  # a value of this setting
    with pytest.raises(ConfigError, match="'embed.dim'.*'none'"):
        Config().override(["embed.dim=none"])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_never_forces_its_image_size_on_another_encoder(preset: str) -> None:
    base = Config.preset(preset)
    assert base.override(["vision.model=other"]).vision.size is None
    assert base.variant("resnet-18", ["vision.train_layers=1"]).vision.size is None
    for both in (["vision.model=other", "vision.size=64"], ["vision.size=64", "vision.model=other"]):
        assert base.override(both).vision.size == 64
    assert base.override(["seed=1"]).vision.size == base.vision.size


def test_every_setting_is_explained() -> None:
    found = {each.name: each for group in groups() for each in group.settings}
    values = Config().model_dump()
    sections = {name: value for name, value in values.items() if isinstance(value, dict)}
    names = {f"{section}.{key}" for section, keys in sections.items() for key in keys}
    assert {*found} == names | {*values} - {*sections}
    assert all(each.meaning and each.values for each in found.values())
    for preset in PRESETS:
        config = Config.preset(preset)
        for name in names:
            section, key = name.split(".")
            said = found[name].presets.get(preset, found[name].default)
            assert said == getattr(getattr(config, section), key)


def test_explanations_say_meaning_values_default_and_presets() -> None:
    (group,) = explain("rank.beta")
    assert group.settings[0].lines() == [
        "rank.beta",
        "  β in s = β c + (1 − β) a. `learnt` fits a mixture of all signals on the held-out points.",
        "  Values: number, at least 0, at most 1; or learnt",
        "  Default: 0.7 (the paper's value)",
        "  Preset best: learnt",
        "  Preset fast: learnt",
    ]
    assert "paper" not in explain("text.words")[0].settings[0].lines()[3]
    assert len(explain("rank")[0].settings) == 6
    assert len(explain(None)) == 11
    for name, known in (("rank.bta", "rank.cross, rank.blocks"), ("rnk", "text, vision")):
        with pytest.raises(ConfigError, match=f"unknown setting '{name}'; known: .*{known}"):
            explain(name)


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


IDLE = [
    ("pretrain.hard_negatives=false", "pretrain.loss=softmax", 'pretrain.loss = "margin"'),
    ("pretrain.negatives=5", "pretrain.loss=softmax", 'pretrain.loss = "margin"'),
    ("pretrain.margin=0.3", "pretrain.loss=softmax", 'pretrain.loss = "margin"'),
    ("pretrain.sampled=64", "pretrain.loss=margin", 'pretrain.loss = "softmax"'),
    ("pretrain.refresh=4", "pretrain.hard_positives=false", "pretrain.hard_positives = true"),
    ("pretrain.hard_similarity=0.8", "pretrain.hard_positives=false", "pretrain.hard_positives = true"),
    ("finetune.margin=0.3", "finetune.loss=softmax", 'finetune.loss = "cosine"'),
    ("finetune.sampled=64", "finetune.loss=cosine", 'finetune.loss = "softmax"'),
    ("vision.stages=true", "vision.train_layers=0", 'vision.model = "offline"'),
    ("embed.stages=true", "vision.stages=false", "vision.stages = true"),
    ("embed.fusion=early", "modalities=text", 'modalities = "both"'),
    ("embed.blocks=2", "embed.attention=none", 'embed.attention = "attention"'),
    ("rank.blocks=2", "rank.cross=concat", 'rank.cross = "attention"'),
    ("rank.start=centroid", "rank.alpha=one", 'rank.alpha = "learnt"'),
    ("finetune.classifier_lr=0.1", "rank.alpha=one", 'rank.alpha = "learnt"'),
    ("memory.temperature=0.1", "memory.neighbours=0", "memory.neighbours above 0 or a memory.loss"),
    ("memory.per_label=5", "memory.neighbours=0", "memory.neighbours above 0"),
    ("memory.title_labels=true", "memory.neighbours=9", "text.words = true"),
    ("finetune.encoder_epochs=0", "embed.fusion=early", 'embed.fusion = "late"'),
]


@pytest.mark.parametrize(("setting", "other", "needed"), IDLE)
def test_a_setting_without_effect_is_an_error(setting: str, other: str, needed: str, tmp_path: Path) -> None:
    name = setting.partition("=")[0]
    said = f"'{name}' has no effect without .*{needed}"
    for changes in ([setting, other], [other, setting]):
        with pytest.raises(ConfigError, match=said) as caught:
            Config().override(changes)
        assert len(str(caught.value)) < 250
    path = tmp_path / "some.toml"
    values: dict[str, dict[str, object]] = {}
    for assignment in (setting, other):
        *section, key = assignment.partition("=")[0].split(".")
        values.setdefault(".".join(section), {})[key] = parse_toml_value(assignment.partition("=")[2])
    path.write_text(tomli_w.dumps({**values.pop("", {}), **values}))
    with pytest.raises(ConfigError, match=f"some.toml: .*{said}"):
        Config.read(path)


def test_encoders_that_are_frozen_have_no_learning_rate() -> None:
    frozen = ["text.train_layers=0", "vision.train_layers=0"]
    for setting in ("pretrain.encoder_lr=1e-4", "finetune.encoder_epochs=3", "finetune.label_encoders=false"):
        with pytest.raises(
            ConfigError, match="has no effect without text.train_layers or vision.train_layers"
        ):
            Config().override([*frozen, setting])
    Config().override(["text.train_layers=0", "finetune.encoder_lr=1e-4"])


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_sets_is_no_mistake_of_the_user(name: str, tmp_path: Path) -> None:
    """Another loss leaves some of the preset's settings idle; a file of all settings may hold them too."""
    changed = Config.preset(name).override(
        ["pretrain.loss=margin", "finetune.loss=cosine", "modalities=text"]
    )
    path = tmp_path / "all.toml"
    path.write_text(changed.to_toml(), "utf-8")
    assert Config.read(path) == changed
    path.write_text(changed.to_toml().replace('loss = "margin"', 'loss = "softmax"').replace(
        "hard_negatives = true", "hard_negatives = false"
    ), "utf-8")  # fmt: skip
    with pytest.raises(ConfigError, match="'pretrain.hard_negatives' has no effect"):
        Config.read(path)


def test_defaults_may_be_spelt_out_without_effect() -> None:
    Config.preset("fast").override(["pretrain.loss=margin", "pretrain.sampled=0", "memory.neighbours=0"])


def test_what_is_already_set_may_become_idle() -> None:
    """Another loss on top of somebody's settings is a change of its own, and no mistake."""
    config = Config().override(["pretrain.loss=softmax", "pretrain.sampled=7"])
    assert config.override(["pretrain.loss=margin"]).pretrain.sampled == 7


@pytest.mark.parametrize("attention", ["none", "sum"])
def test_raw_bags_need_something_that_makes_the_vector(attention: str) -> None:
    with pytest.raises(ConfigError, match=f'bag = "raw" needs an A_S .*attention = "{attention}"'):
        Config().override(["embed.bag=raw", f"embed.attention={attention}"])
    assert Config().override(["embed.bag=raw", "embed.attention=feedforward"]).embed.bag == "raw"


@pytest.mark.parametrize("version", [VERSION + 1, VERSION + 1.0])
def test_newer_version_is_refused(version: float, tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(f"version = {version}\nfuture = 1\n")
    with pytest.raises(ConfigError, match="new.toml: settings have version .*update mufin"):
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
