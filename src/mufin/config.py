"""Settings: the paper's values as defaults, presets, TOML in and out; an unknown key is an error.

The defaults of the classes below are the preset `paper`; `presets.py` holds what the others change.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field, ValidationError

from mufin.config_checks import first_fault, own_values, refuse_idle, toml_value
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

VERSION = 1  # of the settings' form; a newer one is refused, not guessed at


class Config(Section):
    """All settings of a model.

    >>> Config().rank.beta
    0.7
    >>> Config.preset("best").override(["rank.beta=0.5"]).rank.beta
    0.5
    """

    version: int = VERSION
    seed: int = Field(0, ge=0, lt=2**63)
    modalities: Modalities = "both"
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
        """The settings of that name: see `PRESETS`."""
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}; there are: {', '.join(PRESETS)}")
        return cls.parse(PRESETS[name], f"preset {name}")

    @classmethod
    def parse(cls, values: dict[str, Any], source: str) -> Config:
        """Checked settings from nested values; `source` names them in errors."""
        version = values.get("version", VERSION)
        if isinstance(version, int | float) and version > VERSION:
            raise ConfigError(
                f"{source}: settings of version {version}, this mufin knows up to {VERSION}; update mufin"
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{source}: {first_fault(error, cls)}") from None

    @classmethod
    def read(cls, path: Path | str) -> Config:
        """Settings from a TOML file."""
        try:
            text = Path(path).read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8 text; expected TOML") from None
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: not TOML ({error})") from None
        config = cls.parse(values, str(path))
        given = _names(values)
        if given >= _names(config.model_dump(exclude_none=True)):
            given = own_values(config)  # all settings, as `mufin config` writes them: most are a preset's
        refuse_idle(config, str(path), given)
        return config

    def to_toml(self) -> str:
        """All settings as TOML; values that are not given (None) are left out."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))

    def variant(self, name: str, changes: Iterable[str] = ()) -> Config:
        """A copy that is the paper's variant of that name, see `VARIANTS`, with further changes.

        >>> Config.preset("paper").variant("no-ac").rank.cross
        'none'
        """
        if name not in VARIANTS:
            raise ConfigError(f"there is no variant {name!r}; there are: {', '.join(VARIANTS)}")
        if Config.parse(self._assigned(VARIANTS[name]), f"variant {name}") == self:
            raise ConfigError(f"variant {name!r} changes nothing: the settings already have all of it")
        return self.override([*VARIANTS[name], *changes])

    def override(self, assignments: Iterable[str]) -> Config:
        """A copy with `section.key=value` applied; values are read as TOML, else as plain text.

        A change without effect beside the other settings is an error.
        """
        assignments = list(assignments)
        changed = Config.parse(self._assigned(assignments), "settings")
        refuse_idle(changed, "settings", {text.partition("=")[0].strip() for text in assignments})
        return changed

    def _assigned(self, assignments: Iterable[str]) -> dict[str, Any]:
        """All values, after these assignments; not checked yet."""
        values = self.model_dump(exclude_none=True)
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
            target[key] = toml_value(text.strip())
        return values


def _names(values: dict[str, Any]) -> set[str]:
    """`section.key` of all these values.

    >>> _names({"seed": 1, "rank": {"beta": 0.5}})
    {'rank.beta'}
    """
    return {f"{section}.{key}" for section, keys in values.items() if isinstance(keys, dict) for key in keys}
