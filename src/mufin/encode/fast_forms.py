"""Convert encoders to the fastest form for prediction, by network and device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from mufin.data.ragged import CPU, Ragged
from mufin.encode.checkpoints import Layout, check_layout, check_tokenizer, hash_tokenizer, tokenizing
from mufin.encode.network import Lite0, hash_weights
from mufin.encode.text import MAX_CHARACTERS, MIN_BF16_WIDTH, PACKED_BATCH, TextEncoder
from mufin.encode.vision import VisionEncoder
from mufin.runtime.fast_bert import FastBert, PaddedBert, strip_prefix, supports, weight_shapes
from mufin.runtime.onednn import can_pack, fast_dtype, keep_weights, pack_products
from mufin.runtime.recorded import Recorded, rounded_up
from mufin.settings import Layers, Text


def text_encoder(
    settings: Text, layout: Layout | None = None, whole: bool = False
) -> TextEncoder | FastTextEncoder:
    """Build E_T, pre-trained or of a stored layout; the latter in its fast form if available."""
    if layout is None:
        return TextEncoder(settings, None, whole)
    folder, device = layout.folder / "text", layout.fast_on
    if device is not None and not whole and FastTextEncoder.can_load(settings, folder, device):
        return FastTextEncoder(settings, folder, device)
    return TextEncoder(settings, folder, whole)


def accelerate(
    encoder: TextEncoder | FastTextEncoder | VisionEncoder, device: torch.device, one_pass: bool = False
) -> None:
    """Move an encoder to a device in the fastest form for prediction; its state dict is unchanged.

    Folded batch norms; on a CPU packed products; on a GPU bf16, and with `one_pass` frozen and trained layers
    run together, without a transfer to the host in between.
    """
    if isinstance(encoder, FastTextEncoder):  # built for its device
        return
    keep_weights(encoder.network)
    encoder.to(device)
    if isinstance(encoder.network, Lite0) and encoder.depth != 0:  # else `prepare` folds a copy
        encoder.network.fold()
    if device.type == "cpu":
        pack_products(encoder.network)
    elif device.type == "cuda":
        round_to_bf16(encoder, one_pass)


def round_to_bf16(encoder: TextEncoder | VisionEncoder, one_pass: bool) -> None:
    """Convert to bf16; with `one_pass`, run all layers together."""
    encoder.network.to(torch.bfloat16)
    encoder.cut.precision = "-bf16"
    if one_pass and encoder.depth != 0:
        encoder.depth = "all"


TOKENIZER_CLASSES = ("BertTokenizer", "BertTokenizerFast")
CONFIG, TOKENIZER, TOKENIZER_CONFIG = "config.json", "tokenizer.json", "tokenizer_config.json"


RECORDED_TEXTS = 512  # per batch on a GPU
RECORDED_TOKENS = 8  # on a GPU, texts are padded to a multiple of this


class FastTextEncoder(nn.Module):
    """A faster `TextEncoder` for BERT networks, for prediction only: all layers run in one pass."""

    def __init__(self, settings: Text, folder: Path, device: torch.device = CPU) -> None:
        """Build from the layout in `folder` (see `can_load`); `load_state_dict` loads the weights."""
        super().__init__()
        check_layout(folder / CONFIG)
        check_tokenizer(folder / TOKENIZER)
        self.layout = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        config = json.loads(self.layout[CONFIG])
        self.width: int = config["hidden_size"]
        self.max_length = settings.max_length
        self.depth: Layers = 0 if settings.train_layers == 0 else "all"
        self.network = StoredBert(config, _dtype(self.width, device), device)
        self.tokenizer = Tokenizer.from_str(self.layout[TOKENIZER].decode())
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_length)

    @staticmethod
    def can_load(settings: Text, folder: Path, device: torch.device = CPU) -> bool:
        """Return whether the layout is a BERT network with a BERT tokenizer that the device can run."""
        if not (folder / TOKENIZER).is_file() or (device.type == "cpu" and not can_pack()):
            return False
        try:
            files = (folder / CONFIG, folder / TOKENIZER_CONFIG)
            config, tokenizer = (json.loads(file.read_text("utf-8")) for file in files)
            plain = tokenizer["tokenizer_class"] in TOKENIZER_CLASSES
            plain = plain and tokenizer.get("truncation_side", "right") == "right"
            return plain and supports(config) and settings.max_length <= config["max_position_embeddings"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False  # unknown format: `TextEncoder` reports what is wrong

    def fingerprint(self) -> str:
        """Identify everything but the texts that `prepare` depends on; equals `TextEncoder.fingerprint`."""
        weights = hash_weights(self.network.weights if self.depth == 0 else {})
        rounded = self.depth == 0 and self.network.dtype != torch.float32
        words = hash_tokenizer(json.loads(self.tokenizer.to_str()))
        return f"text-{weights}{'-bf16' * rounded}-{words}-{self.depth}-{self.max_length}"

    @torch.no_grad()
    def prepare(self, texts: Sequence[str]) -> Ragged:
        """Return a (1, H) vector per text if no layer was trained, else (T,) token ids."""
        shortened = [text[:MAX_CHARACTERS] for text in texts]
        with tokenizing():
            ids = [row.ids for row in self.tokenizer.encode_batch_fast(shortened)]
        tokens = Ragged.of_lists(ids)
        if self.depth == "all":
            return tokens
        rows = self._run(*tokens.take(np.arange(len(tokens)))).cpu().numpy()
        return Ragged(rows, np.arange(len(rows) + 1, dtype=np.int64))

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Prepared rows (n, T) or (n, 1, H) → (n, H)."""
        return values[:, 0] if self.depth == 0 else self._run(values, lengths)

    def _run(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Encode texts in batches of similar length: (n, T) → (n, H)."""
        if self.network.device.type == "cuda":
            return self._run_recorded(ids, lengths)
        order = lengths.argsort(stable=True)
        rows = [self.network(ids[p, : int(lengths[p[-1]])], lengths[p]) for p in order.split(PACKED_BATCH)]
        return torch.cat(rows)[order.argsort()]

    def _run_recorded(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Encode texts on a GPU, padded to few shapes: (n, T) → (n, H)."""
        longest, rows = -(-max(1, ids.shape[1]) // RECORDED_TOKENS) * RECORDED_TOKENS, []
        longest = min(longest, self.network.positions)
        for some, sizes in zip(ids.split(RECORDED_TEXTS), lengths.split(RECORDED_TEXTS), strict=True):
            missing = rounded_up(len(some)) - len(some)
            some = F.pad(some, (0, longest - some.shape[1], 0, missing))
            found = self.network(*(t.to(self.network.device) for t in (some, F.pad(sizes, (0, missing)))))
            rows.append(found[: len(found) - missing])
        return torch.cat(rows)

    def save(self, folder: Path) -> None:
        """Write the files that it was built from."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.layout.items():
            (folder / name).write_bytes(content)


def _dtype(width: int, device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        return torch.bfloat16
    return fast_dtype() if width >= MIN_BF16_WIDTH else torch.float32


class StoredBert(nn.Module):
    """`FastBert` or `PaddedBert` as a module without parameters, whose state dict is the original weights.

    The weights may be mapped from a file; loading them builds the network on its device.
    """

    def __init__(self, config: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config, self.dtype, self.device = config, dtype, device
        self.positions: int = config["max_position_embeddings"]
        self.weights: dict[str, Tensor] = {}

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self.fast(ids, lengths)

    def _built(self) -> Callable[[Tensor, Tensor], Tensor]:
        if self.device.type == "cuda":
            return Recorded(PaddedBert(self.config, self.weights, self.device))
        return FastBert(self.config, self.weights, self.dtype)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:  # the signature is torch's
        found, wanted = strip_prefix(state_dict, prefix), dict(weight_shapes(self.config))
        missing_keys += [prefix + name for name in wanted if name not in found]
        unexpected_keys += [prefix + name for name in found if name not in wanted]
        wrong = [
            f"size mismatch for {prefix}{name}: {tuple(found[name].shape)}, expected {shape}"
            for name, shape in wanted.items()
            if name in found and tuple(found[name].shape) != shape
        ]
        error_msgs += wrong
        if not wrong and found.keys() == wanted.keys():
            self.weights = {name: found[name].detach() for name in wanted}
            self.fast = self._built()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        destination.update({prefix + name: weight for name, weight in self.weights.items()})
