"""Define presets and variants by what they change; all else has the paper's values, see `settings.py`."""

from __future__ import annotations

from typing import Any

_OFFLINE = {
    "text": {
        "model": "offline", "train_layers": 0, "words": True, "linear": True, "pretrained_similarity": True,
    },
    "vision": {"model": "offline", "train_layers": 0, "size": 128, "stages": True},
}  # fmt: skip

_FAST: dict[str, Any] = {
    **_OFFLINE,
    "embed": {"projection": "linear", "input_dropout": 0.4},
    "pretrain": {
        "epochs": 5, "batch": 512, "lr": 1e-3, "warmup": 100, "loss": "softmax", "sampled": 1024,
        "encoder_epochs": 0,
    },
    "rank": {"cross": "none", "beta": "learnt", "compatibility": True},
    "memory": {"neighbours": 50, "loss": 0.5, "title_labels": True},
    "finetune": {
        "epochs": 30, "batch": 512, "lr": 1e-3, "classifier_lr": 1e-2, "warmup": 100,
        "loss": "softmax", "negatives": 4, "sampled": 2048,
    },
    "sets": {"points": "each"},
    "run": {"validation": 0.05},
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's values and encoders: all defaults.
    "paper": {},
    # The packaged encoders with the text encoder trained, a softmax over many labels, and a memory.
    "best": _FAST
    | {
        "text": _OFFLINE["text"] | {"train_layers": "all"},
        "vision": {"model": "offline", "train_layers": 0, "size": 192, "stages": "every"},
        "embed": _FAST["embed"] | {"dim": 384, "stages": True},
        "finetune": _FAST["finetune"] | {"encoder_epochs": 22, "encoder_lr": 2e-4, "label_encoders": False},
    },
    # Both encoders frozen, smaller images, only the last feature map embedded, D = 192: minutes on a CPU.
    "fast": _FAST,
}

_MODULE_I = ("finetune.epochs=0", "rank.beta=0")
_CLIP = "openai/clip-vit-base-patch32"
_FROZEN = ("text.train_layers=0", "vision.train_layers=0")
_TUNED = ("text.train_layers=all", "vision.train_layers=all")
_CLIP_MUFIN = ("embed.bag=raw", f"text.model={_CLIP}", f"vision.model={_CLIP}")
_VISUALBERT_MUFIN = (
    "embed.fusion=early", "embed.attention=none", 'retrieve.entries=["vector"]', "text.model=visualbert/",
    "vision.model=microsoft/resnet-101",
)  # fmt: skip

# Variants that the paper evaluates, each as a list of changes for `--set`. They apply to any settings.
VARIANTS: dict[str, tuple[str, ...]] = {
    "random-positives": ("pretrain.hard_positives=false",),
    "random-pairs": ("pretrain.hard_positives=false", "pretrain.hard_negatives=false"),
    "p-i-bag": (*_MODULE_I, 'retrieve.entries=["bag"]'),
    "p-i-vec": (*_MODULE_I, 'retrieve.entries=["vector"]'),
    "concat": ("rank.cross=concat",),
    "no-as": ("embed.attention=feedforward",),
    "no-ac": ("rank.cross=none",),
    "alpha-one": ("rank.alpha=one",),
    "lite": ("finetune.encoder_epochs=0",),
    "two-blocks": ("embed.blocks=2", "rank.blocks=2"),
    "resnet-18": ("vision.model=microsoft/resnet-18", "rank.alpha=one"),
    "siamese-xml": ("modalities=text", "embed.attention=none", "rank.cross=none"),
    "clip": (*_CLIP_MUFIN, *_FROZEN),
    "clip-tuned": (*_CLIP_MUFIN, *_TUNED),
    "visualbert": (*_VISUALBERT_MUFIN, *_FROZEN),
    "visualbert-tuned": (*_VISUALBERT_MUFIN, *_TUNED),
}
