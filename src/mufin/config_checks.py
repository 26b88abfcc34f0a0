"""Settings as users write them: reading values, and telling what is wrong with them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ValidationError

from mufin.errors import ConfigError
from mufin.presets import PRESETS

if TYPE_CHECKING:
    from mufin.config import Config


def toml_value(text: str) -> Any:
    """What TOML makes of it, else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def first_fault(error: ValidationError, settings: type[BaseModel]) -> str:
    """The first fault as one sentence, with the known keys beside an unknown one."""
    fault = error.errors()[0]
    path = [str(part) for part in fault["loc"]]
    if fault["type"] == "extra_forbidden":
        return f"unknown setting {'.'.join(path)!r}; known here: {', '.join(_fields(settings, path[:-1]))}"
    # A section and a key; what may follow is the place in a list, or the kind that a union tried first.
    name = ".".join(path[: 2 if _fields(settings, path[:1]) else 1])
    if fault["type"] == "value_error":
        return f"setting {name!r}: {fault['ctx']['error']}"
    return f"setting {name!r}: {fault['msg'].lower()}, got {fault.get('input')!r}"


def _fields(settings: type[BaseModel], path: list[str]) -> list[str]:
    """The keys of the section at this path; none where there is a plain value."""
    model: Any = settings
    for part in path:
        model = model.model_fields[part].annotation
    return list(getattr(model, "model_fields", ()))


class Need(NamedTuple):
    """What some settings need to have an effect, in words and as a condition."""

    what: str
    holds: Callable[[Config], bool]
    settings: tuple[str, ...]


def _trains_encoders(c: Config) -> bool:
    return c.text.train_layers != 0 or (c.modalities != "text" and c.vision.train_layers != 0)


_STEPS_OF_ENCODERS = ("pretrain.encoder_epochs", "finetune.encoder_epochs", "finetune.label_encoders")

NEEDS = [
    Need(
        'pretrain.loss = "margin"',
        lambda c: c.pretrain.loss == "margin",
        ("pretrain.margin", "pretrain.negatives", "pretrain.hard_negatives"),
    ),
    Need('pretrain.loss = "softmax"', lambda c: c.pretrain.loss == "softmax", ("pretrain.sampled",)),
    Need(
        "pretrain.hard_positives = true",
        lambda c: c.pretrain.hard_positives,
        ("pretrain.hard_similarity", "pretrain.refresh"),
    ),
    Need('finetune.loss = "cosine"', lambda c: c.finetune.loss == "cosine", ("finetune.margin",)),
    Need('finetune.loss = "softmax"', lambda c: c.finetune.loss == "softmax", ("finetune.sampled",)),
    Need('text.train_layers = "all"', lambda c: c.text.train_layers == "all", ("text.case",)),
    Need(
        'vision.model = "offline" and vision.train_layers = 0',
        lambda c: c.vision.model == "offline" and c.vision.train_layers == 0,
        ("vision.stages",),
    ),
    Need("vision.stages = true", lambda c: c.vision.stages is not False, ("embed.stages",)),
    Need('modalities = "both"', lambda c: c.modalities != "text", ("embed.fusion",)),
    Need('embed.attention = "attention"', lambda c: c.embed.attention == "attention", ("embed.blocks",)),
    Need(
        'embed.attention or rank.cross = "attention"',
        lambda c: "attention" in (c.embed.attention, c.rank.cross),
        ("embed.heads", "embed.dropout"),
    ),
    Need('rank.cross = "attention"', lambda c: c.rank.cross == "attention", ("rank.blocks",)),
    Need(
        'rank.alpha = "learnt"',
        lambda c: c.rank.alpha == "learnt",
        ("rank.start", "finetune.classifier_lr"),
    ),
    Need(
        "memory.neighbours above 0 or a memory.loss",
        lambda c: c.memory.neighbours > 0 or c.memory.loss > 0,
        ("memory.temperature",),
    ),
    Need("memory.neighbours above 0", lambda c: c.memory.neighbours > 0, ("memory.per_label",)),
    Need(
        "memory.neighbours above 0 and text.words = true",
        lambda c: c.memory.neighbours > 0 and c.text.words,
        ("memory.word_temperature", "memory.title_labels"),
    ),
    Need(
        "text.train_layers or vision.train_layers above 0",
        _trains_encoders,
        ("pretrain.encoder_lr", "finetune.encoder_lr", *_STEPS_OF_ENCODERS),
    ),
    Need('embed.fusion = "late"', lambda c: c.embed.fusion == "late", _STEPS_OF_ENCODERS),
]


def refuse_idle(config: Config, source: str, given: Collection[str]) -> None:
    """Raise an error if one of the `given` settings has no effect beside the others.

    A value that is the default may stand anywhere: whoever spells it out changes nothing.
    """
    defaults = type(config)()
    for need in NEEDS:
        for name in need.settings:
            if name not in given or need.holds(config) or _value(config, name) == _value(defaults, name):
                continue
            raise ConfigError(
                f"{source}: setting {name!r} has no effect without {need.what}; "
                "set that as well, or leave it out"
            )


def own_values(config: Config) -> set[str]:
    """The settings that can be idle whose values no preset has: somebody has chosen them."""
    names = {name for need in NEEDS for name in need.settings}
    return {
        name
        for name in names
        if all(_of_preset(preset, name) != _value(config, name) for preset in PRESETS.values())
    }


def _value(config: Config, name: str) -> Any:
    section, key = name.split(".")
    return getattr(getattr(config, section), key)


def _of_preset(preset: dict[str, Any], name: str) -> Any:
    section, key = name.split(".")
    return preset.get(section, {}).get(key)
