"""Settings that others leave without effect: an error, or one ablation would silently repeat another."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from mufin.errors import ConfigError
from mufin.presets import PRESETS

if TYPE_CHECKING:
    from mufin.config import Config


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
