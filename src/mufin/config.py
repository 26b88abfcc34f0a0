"""Read, check, change and write settings; an unknown key is an error.

Defaults are the paper's values, which are the preset `paper`; `presets.py` lists what other presets change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from mufin.config_checks import (
    customised,
    describe_first_error,
    is_optional,
    parse_toml_value,
    reject_ineffective,
)
from mufin.errors import ConfigError
from mufin.presets import PRESETS, VARIANTS
from mufin.settings import (
    Embed,
    Finetune,
    Memory,
    Modalities,
    Pretrain,
    Rank,
    Retrieve,
    Run,
    Section,
    Sets,
    Text,
    Vision,
)

SHOWN = 12  # changed settings that `repr` shows
VERSION = 1  # format of the settings; newer versions are rejected


class Config(Section):
    """Hold all settings of a model.

    >>> Config().rank.beta
    0.7
    >>> Config.preset("best").override(["rank.beta=0.5"]).rank.beta
    0.5
    """

    version: int = VERSION
    """Format version of the settings."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of all random numbers: the same seed gives the same model on the same machine."""
    modalities: Modalities = "both"
    """What the model reads of datapoints and labels: texts, images or both."""
    text: Text = Text()
    vision: Vision = Vision()
    embed: Embed = Embed()
    pretrain: Pretrain = Pretrain()
    retrieve: Retrieve = Retrieve()
    rank: Rank = Rank()
    finetune: Finetune = Finetune()
    memory: Memory = Memory()
    sets: Sets = Sets()
    run: Run = Run()

    @classmethod
    def preset(cls, name: str) -> Config:
        """Return the preset of this name, see `PRESETS`."""
        if name not in PRESETS:
            raise ConfigError(f"unknown preset {name!r}; choose one of: {', '.join(PRESETS)}")
        return cls.parse(PRESETS[name], f"preset {name}")

    @classmethod
    def parse(cls, values: dict[str, Any], source: str) -> Config:
        """Validate nested values; errors begin with `source`."""
        version = values.get("version", VERSION)
        if isinstance(version, int | float) and version > VERSION:
            raise ConfigError(
                f"{source}: settings have version {version}, this mufin reads up to {VERSION}; update mufin"
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{source}: {describe_first_error(error, cls)}") from None

    @classmethod
    def read(cls, path: Path | str, check: bool = True) -> Config:
        """Read settings from a TOML file; `check` rejects settings that have no effect with the others."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8 text; expected TOML") from None
        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: not TOML ({error})") from None
        config = cls.parse(values, str(path))
        if not check:
            return config
        given = _setting_names(values)
        if given >= _setting_names(config.model_dump(exclude_none=True)):
            # `mufin config` writes every setting, most of them a preset's: check only the user's own.
            given = customised(config)
        reject_ineffective(config, str(path), given)
        return config

    def __repr__(self) -> str:
        preset, changes = nearest_preset(self)
        shown = [*changes[:SHOWN], *([f"… {len(changes) - SHOWN} more"] if len(changes) > SHOWN else [])]
        return f"Config({', '.join([preset, *shown])})"

    __str__ = __repr__

    def to_toml(self) -> str:
        """Return all settings as TOML, without those that are None."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def variant(self, name: str, changes: Iterable[str] = ()) -> Config:
        """Return a copy with one of the paper's variants applied, see `VARIANTS`, then further changes.

        >>> Config.preset("paper").variant("no-ac").rank.cross
        'none'
        """
        if name not in VARIANTS:
            raise ConfigError(f"unknown variant {name!r}; choose one of: {', '.join(VARIANTS)}")
        if Config.parse(self._assigned(VARIANTS[name]), f"variant {name}") == self:
            raise ConfigError(f"variant {name!r} changes nothing: these settings already include it")
        return self.override([*VARIANTS[name], *changes])

    def override(self, assignments: Iterable[str]) -> Config:
        """Return a copy with `section.key=value` applied; values are TOML or plain text.

        `none` unsets a setting that may be missing. Another `vision.model` also unsets `vision.size`.
        A change that has no effect with the other settings is an error.
        """
        assignments = list(assignments)
        changed = Config.parse(self._assigned(assignments), "settings")
        reject_ineffective(changed, "settings", {text.partition("=")[0].strip() for text in assignments})
        return changed

    def _assigned(self, assignments: Iterable[str]) -> dict[str, Any]:
        """Return all values after these assignments, not validated."""
        values = self.model_dump(exclude_none=True)
        assignments = list(assignments)
        names = {assignment.partition("=")[0].strip() for assignment in assignments}
        if "vision.model" in names and "vision.size" not in names:
            values["vision"].pop("size", None)  # chosen for another encoder
        for assignment in assignments:
            path, equals, text = assignment.partition("=")
            if not equals:
                raise ConfigError(f"{assignment!r}: expected section.key=value")
            *sections, key = path.strip().split(".")
            target = values
            for section in sections:
                target = target.setdefault(section, {})
                if not isinstance(target, dict):
                    raise ConfigError(f"{assignment!r}: {section} is a value, not a section")
            target[key] = parse_toml_value(text.strip())
            if target[key] == "none" and is_optional(type(self), path.strip()):
                del target[key]
        return values


def _setting_names(values: dict[str, Any]) -> set[str]:
    """Return the `section.key` of each value in a section.

    >>> _setting_names({"seed": 1, "rank": {"beta": 0.5}})
    {'rank.beta'}
    """
    return {f"{section}.{key}" for section, keys in values.items() if isinstance(keys, dict) for key in keys}


def nearest_preset(config: Config) -> tuple[str, list[str]]:
    """Return the preset closest to these settings, and the changes to it."""
    options = {name: differences(config, Config.preset(name)) for name in PRESETS}
    name = min(options, key=lambda name: len(options[name]))
    return name, options[name]


def differences(config: Config, base: Config) -> list[str]:
    """List the settings that differ from `base`, in the form that `--set` accepts.

    >>> differences(Config().override(["rank.beta=0.5"]), Config())
    ['rank.beta=0.5']
    """
    new, old = _flat(config.model_dump()), _flat(base.model_dump())
    shown = {True: "true", False: "false", None: "none"}
    return [
        f"{name}={shown[value] if value is None or isinstance(value, bool) else value}"
        for name, value in new.items()
        if value != old[name]
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
