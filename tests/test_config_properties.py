"""Whatever settings are given: they go through TOML and back, or one sentence says what is wrong."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from mufin import Config
from mufin.errors import ConfigError
from mufin.presets import PRESETS, VARIANTS

NAMES = [
    name if not isinstance(value, dict) else f"{name}.{key}"
    for name, value in Config().model_dump().items()
    for key in (value if isinstance(value, dict) else [""])
]
CHOSEN = [  # settings that presets and variants choose, and others that many settings leave without effect
    *(assignment for variant in VARIANTS.values() for assignment in variant),
    *(
        f"{section}.{key}={value if isinstance(value, str) else tomli_w.dumps({'x': value})[4:].strip()}"
        for preset in PRESETS.values()
        for section, keys in preset.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    ),
    *(
        "pretrain.margin=0.31",
        "finetune.margin=0.31",
        "pretrain.sampled=3",
        "rank.blocks=2",
        "rank.start=centroid",
    ),
]
VALUES = st.one_of(
    st.text(max_size=12),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["true", "[]", '["bag"]', "{a = 1}", "all", "learnt", "none", "1979-05-27", "'x'", "[" * 2000]
    ),
    st.sampled_from(["margin", "softmax", "dynamic", "every", "0", "1", "0.5", "1e400", "9" * 5000, "0x10"]),
)
ASSIGNMENTS = st.one_of(
    st.builds("{}={}".format, st.sampled_from(NAMES), VALUES),
    st.builds("{}={}".format, st.text(max_size=8), VALUES),
    st.sampled_from(CHOSEN),
    st.text(max_size=10),
)


def read_back(config: Config) -> Config:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "config.toml"
        path.write_text(config.to_toml(), "utf-8")
        return Config.read(path, check=False)


@given(preset=st.sampled_from([*PRESETS]), assignments=st.lists(ASSIGNMENTS, max_size=4))
@settings(max_examples=300)
def test_overrides_give_settings_or_a_sentence(preset: str, assignments: list[str]) -> None:
    try:
        config = Config.preset(preset).override(assignments)
    except ConfigError:
        return
    assert read_back(config) == config


@given(
    preset=st.sampled_from([*PRESETS]),
    steps=st.lists(
        st.builds("{}={}".format, st.sampled_from(NAMES), VALUES) | st.sampled_from(CHOSEN), max_size=8
    ),
)
@settings(max_examples=150)
def test_settings_changed_one_by_one_go_through_toml(preset: str, steps: list[str]) -> None:
    config = Config.preset(preset)
    for step in steps:
        try:
            config = config.override([step])
        except ConfigError:
            continue
    assert read_back(config) == config  # as a model folder is read


PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8)
TOML = st.dictionaries(
    st.sampled_from([*Config.model_fields]) | st.text(max_size=4),
    st.recursive(
        PLAIN,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([name.partition(".")[2] for name in NAMES]), inner, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=4,
)


@given(values=TOML, cut=st.integers(0, 200))
@settings(max_examples=200)
def test_any_toml_gives_settings_or_a_sentence(values: dict[str, Any], cut: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "mine.toml"
        for raw in (tomli_w.dumps(values).encode(), tomli_w.dumps(values).encode()[:cut]):
            path.write_bytes(raw)
            with suppress(ConfigError):
                assert read_back(Config.read(path)) == Config.read(path)
