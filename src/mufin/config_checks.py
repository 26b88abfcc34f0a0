"""Parse values that users set, explain invalid ones, and reject those that have no effect."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from mufin.errors import ConfigError
from mufin.presets import PRESETS

if TYPE_CHECKING:
    from mufin.config import Config


def parse_toml_value(text: str) -> Any:
    """Parse a value as TOML; return other text as it is."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # ValueError: not TOML, or an integer of more than 4,300 digits
        return text
    return parsed["value"] if len(parsed) == 1 else text


def is_optional(settings: type[BaseModel], name: str) -> bool:
    """Whether the setting `section.key` may be None.

    >>> from mufin.config import Config
    >>> is_optional(Config, "vision.size"), is_optional(Config, "rank.cross")
    (True, False)
    """
    section, _, key = name.rpartition(".")
    model: Any = settings.model_fields[section].annotation if section in settings.model_fields else settings
    field = model.model_fields.get(key)
    return field is not None and type(None) in get_args(field.annotation)


def describe_first_error(error: ValidationError, settings: type[BaseModel]) -> str:
    """Describe the first error in one sentence; for an unknown key, list the known ones."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        known = _fields(settings, path[:-1])
        meant = "".join(f" (did you mean {name!r}?)" for name in get_close_matches(path[-1], known, 1))
        return f"unknown setting {'.'.join(path)!r}{meant}; known here: {', '.join(known)}"
    # Keep section and key. A position in a list or the member of a union may follow them.
    name = ".".join(path[: 2 if _fields(settings, path[:1]) else 1])
    if first["type"] == "value_error":
        return f"setting {name!r}: {first['ctx']['error']}"
    return f"setting {name!r}: {first['msg'].lower()}, got {first.get('input')!r}"


def _fields(settings: type[BaseModel], path: list[str]) -> list[str]:
    """List the keys of the section at this path; a plain value has none."""
    model: Any = settings
    for part in path:
        model = model.model_fields[part].annotation
    return list(getattr(model, "model_fields", ()))


class Requirement(NamedTuple):
    """A condition on other settings without which some settings have no effect."""

    description: str
    is_met: Callable[[Config], bool]
    settings: tuple[str, ...]  # those that have no effect otherwise


def _trains_encoders(c: Config) -> bool:
    return c.text.train_layers != 0 or (c.modalities != "text" and c.vision.train_layers != 0)


_ENCODER_TRAINING = ("pretrain.encoder_epochs", "finetune.encoder_epochs", "finetune.label_encoders")

REQUIREMENTS = [
    Requirement(
        'pretrain.loss = "margin"',
        lambda c: c.pretrain.loss == "margin",
        ("pretrain.margin", "pretrain.negatives", "pretrain.hard_negatives"),
    ),
    Requirement('pretrain.loss = "softmax"', lambda c: c.pretrain.loss == "softmax", ("pretrain.sampled",)),
    Requirement(
        "pretrain.hard_positives = true",
        lambda c: c.pretrain.hard_positives,
        ("pretrain.hard_similarity", "pretrain.refresh"),
    ),
    Requirement('finetune.loss = "cosine"', lambda c: c.finetune.loss == "cosine", ("finetune.margin",)),
    Requirement('finetune.loss = "softmax"', lambda c: c.finetune.loss == "softmax", ("finetune.sampled",)),
    Requirement(
        'vision.model = "offline" and vision.train_layers = 0',
        lambda c: c.vision.model == "offline" and c.vision.train_layers == 0,
        ("vision.stages",),
    ),
    Requirement("vision.stages = true", lambda c: c.vision.stages is not False, ("embed.stages",)),
    Requirement('modalities = "both"', lambda c: c.modalities != "text", ("embed.fusion",)),
    Requirement(
        'embed.attention = "attention"', lambda c: c.embed.attention == "attention", ("embed.blocks",)
    ),
    Requirement(
        'embed.attention or rank.cross = "attention"',
        lambda c: "attention" in (c.embed.attention, c.rank.cross),
        ("embed.heads", "embed.dropout"),
    ),
    Requirement(
        'retrieve.search = "milvus"',
        lambda c: c.retrieve.search == "milvus",
        ("retrieve.uri", "retrieve.collection"),
    ),
    Requirement('rank.cross = "attention"', lambda c: c.rank.cross == "attention", ("rank.blocks",)),
    Requirement(
        'rank.alpha = "learnt"',
        lambda c: c.rank.alpha == "learnt",
        ("rank.start", "finetune.classifier_lr"),
    ),
    Requirement(
        "memory.neighbours above 0 or a memory.loss",
        lambda c: c.memory.neighbours > 0 or c.memory.loss > 0,
        ("memory.temperature",),
    ),
    Requirement("memory.neighbours above 0", lambda c: c.memory.neighbours > 0, ("memory.per_label",)),
    Requirement(
        "memory.neighbours above 0 and text.words = true",
        lambda c: c.memory.neighbours > 0 and c.text.words,
        ("memory.word_temperature", "memory.title_labels", "text.linear"),
    ),
    Requirement(
        "text.train_layers or vision.train_layers above 0",
        _trains_encoders,
        ("pretrain.encoder_lr", "finetune.encoder_lr", *_ENCODER_TRAINING),
    ),
    Requirement('embed.fusion = "late"', lambda c: c.embed.fusion == "late", _ENCODER_TRAINING),
]


def reject_ineffective(config: Config, source: str, given: Collection[str]) -> None:
    """Raise a ConfigError if one of the `given` settings has no effect with the others.

    Default values are always accepted: spelling them out changes nothing.
    """
    defaults = type(config)()
    for requirement in REQUIREMENTS:
        for name in requirement.settings:
            if (
                name not in given
                or requirement.is_met(config)
                or _value(config, name) == _value(defaults, name)
            ):
                continue
            raise ConfigError(
                f"{source}: setting {name!r} has no effect without {requirement.description}; "
                f"set that too, or remove {name}"
            )


def customised(config: Config) -> set[str]:
    """Return settings that may have no effect and whose values are in no preset: the user chose them."""
    names = {name for requirement in REQUIREMENTS for name in requirement.settings}
    return {
        name
        for name in names
        if all(_preset_value(preset, name) != _value(config, name) for preset in PRESETS.values())
    }


def _value(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def _preset_value(preset: dict[str, Any], name: str) -> Any:
    section, key = name.split(".")
    return preset.get(section, {}).get(key)
