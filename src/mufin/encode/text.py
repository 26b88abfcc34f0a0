"""E_T: encode texts as vectors of the encoder's native width."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mufin.data.ragged import Ragged, offsets_of, ranges
from mufin.encode.bag import Bag
from mufin.encode.checkpoints import (
    check_tokenizer,
    hash_tokenizer,
    load_pretrained,
    load_stored,
    load_transformer,
    offline_text_folder,
    stored_transformer,
    tokenizer_rules,
    tokenizing,
)
from mufin.encode.network import Cut
from mufin.errors import ConfigError
from mufin.files.tensors import disk_error
from mufin.runtime.autograd import replace_dropout
from mufin.runtime.fast_bert import FastBert, supports
from mufin.runtime.onednn import can_pack, fast_dtype
from mufin.runtime.sdpa import unplanned_attention
from mufin.settings import Layers, Text

MAX_TEXTS = 512  # per batch
MAX_CPU_TOKENS = 1 << 14  # per batch on a CPU, including padding
PACKED_BATCH = 64  # texts per batch with packed weights
TEXTS_PER_CPU_PASS, TEXTS_PER_PASS = 128, 2048  # through frozen layers
LENGTH_RATIO = 1.4  # on a CPU, texts in a batch differ in length by at most this factor
MIN_BF16_WIDTH = 256  # width from which bf16 training is faster on a CPU that supports bf16
TOKENIZER_LOCK = threading.Lock()  # a tokenizer stores the options of its last call
MAX_CHARACTERS = 20_000  # per text: far beyond any max_length, and safe for a 1 MB text


class TextEncoder(nn.Module):
    """A transformer, then the mean over tokens without padding (CLIP: its projection of the last token)."""

    def __init__(self, settings: Text, folder: Path | None = None, whole: bool = False) -> None:
        """Load the pre-trained model of the settings, or build the layout in `folder`, to be filled later.

        `whole`: `forward` runs every layer, frozen or not, since images enter before the first one.
        """
        super().__init__()
        import transformers as hf

        name = str(folder or (offline_text_folder() if settings.model == "offline" else settings.model))
        self.tokenizer: Any
        if folder is None:
            self.network = load_transformer(name, "text")
            self.tokenizer = load_pretrained(hf.AutoTokenizer.from_pretrained, name)
        else:
            self.network = stored_transformer(folder, "text")
            check_tokenizer(folder / "tokenizer.json")
            self.tokenizer = load_stored(hf.AutoTokenizer.from_pretrained, folder)
        self.max_length = settings.max_length
        self.depth: Layers = "all" if whole else settings.train_layers  # layers that `forward` runs
        config: Any = self.network.config
        self.has_projection = hasattr(self.network, "text_projection")
        self.width: int = config.projection_dim if self.has_projection else config.hidden_size
        self.visual_width: int | None = getattr(config, "visual_embedding_dim", None)  # VisualBERT's
        self.cut = Cut(self.network, settings.train_layers, name)
        if folder is None and not whole:
            ids = torch.zeros(1, 3, dtype=torch.int64)  # the smallest max_length
            call = partial(self.network, input_ids=ids, attention_mask=torch.ones_like(ids))
            self.cut.check(call, lambda output: output.last_hidden_state)
        replace_dropout(self.network)
        self.packed: FastBert | None = None
        self.max_positions = _max_positions(config, self.cut.embeddings)
        if self.max_positions is not None and self.max_length > self.max_positions:
            raise ConfigError(
                f"text.max_length = {self.max_length}, but {name} takes at most {self.max_positions} tokens"
            )

    def pack(self, dtype: torch.dtype = torch.float32) -> bool:
        """Use a faster layout of the same weights for prediction on a CPU, until the next training."""
        config: Any = self.network.config
        weight = next(self.network.parameters())
        usual = weight.device.type == "cpu" and weight.dtype == torch.float32 and can_pack()
        if usual and supports(config.to_dict()):
            self.packed = FastBert(config.to_dict(), self.network.state_dict(), dtype)
        return self.packed is not None

    def train(self, mode: bool = True) -> TextEncoder:
        """Set the mode; training drops packed weights, which would become outdated."""
        self.packed = None if mode else self.packed
        super().train(mode)
        self.cut.eval_frozen()
        return self

    @cached_property
    def empty(self) -> list[int]:
        """Return the tokens of an empty text, which begin and end every text."""
        with TOKENIZER_LOCK:
            ids: list[int] = self.tokenizer("")["input_ids"]
        return ids

    def fingerprint(self) -> str:
        """Identify everything but the texts that frozen-layer outputs depend on."""
        words = hash_tokenizer(tokenizer_rules(self.tokenizer))
        return f"text-{self.cut.fingerprint}-{words}-{self.depth}-{self.max_length}"

    @torch.no_grad()
    def prepare(self, texts: Sequence[str], batch: int | None = None) -> Ragged:
        """Run the frozen layers on each text.

        Returns a (1, H) vector per text if no layer is trained, (T, H) hidden states at the cut, or (T,)
        token ids if all layers are trained.
        """
        with TOKENIZER_LOCK, tokenizing():
            tokens = Ragged.of_lists(self._tokenized([text[:MAX_CHARACTERS] for text in texts]))
        if self.depth == "all":
            return tokens
        order = np.argsort(tokens.lengths, kind="stable")  # group similar lengths to avoid padding
        batch = batch or (TEXTS_PER_PASS if self._device.type == "cuda" else TEXTS_PER_CPU_PASS)
        parts = [order[start : start + batch] for start in range(0, len(order), batch)]
        found = [self._run_frozen(*tokens.take(part)) for part in parts]
        sizes = np.ones(len(order), np.int64) if self.depth == 0 else tokens.lengths[order]
        back = Ragged(np.concatenate(found), offsets_of(sizes))
        place = np.argsort(order)  # of each text among the encoded ones
        return Ragged(back.flat[ranges(back.offsets[place], sizes[place])], offsets_of(sizes[place]))

    def _tokenized(self, texts: list[str]) -> list[list[int]]:
        """Return token ids, without what transformers computes beside them: half the time."""
        if not self.tokenizer.is_fast:
            encoded = self.tokenizer(texts, truncation=True, max_length=self.max_length)
            ids: list[list[int]] = encoded["input_ids"]
            return ids
        tokenizer = self.tokenizer.backend_tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(self.max_length, direction=self.tokenizer.truncation_side)
        return [row.ids for row in tokenizer.encode_batch_fast(texts)]

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _run_frozen(self, ids: Tensor, lengths: Tensor) -> Any:
        """Return the rows of these texts, end to end: (n, H), or (Σ lengths, H) at the cut."""
        ids, lengths = ids.to(self._device), lengths.to(self._device)
        if self.depth == 0:
            return self.encode(ids, lengths).float().cpu().numpy()
        mask = _mask(ids, lengths)
        hidden = self.cut.before(lambda: self._call(input_ids=ids, attention_mask=mask))
        return hidden[mask.bool()].half().cpu().numpy()

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Run the trained layers: prepared rows (n, T, ...) → (n, H)."""
        if self.depth == 0:
            return values[:, 0]
        parts = self._batches(lengths)
        tokens = self._token_rows(values, lengths)
        with self._autocast(values.device):
            rows = [self._run_trained(tokens(part), lengths[part]) for part in parts]
        return torch.cat(rows)[torch.cat(parts).argsort()]

    def _autocast(self, device: torch.device) -> torch.autocast:
        """Return the bf16 context for training on a CPU; small networks stay in f32, which is as fast."""
        half = device.type == "cpu" and self.training and self.width >= MIN_BF16_WIDTH
        return torch.autocast("cpu", fast_dtype(), enabled=half and fast_dtype() != torch.float32)

    def _token_rows(self, values: Tensor, lengths: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from a batch of texts (p,) to their padded prepared rows (p, T, ...).

        Trained token embeddings are looked up once for all batches: the gradient of each lookup is as large
        as the vocabulary.
        """
        if self.depth != "all" or not self.training or self.has_projection:
            return lambda part: values[part, : int(lengths[part].max())]
        found = self._embed_tokens(values[_mask(values, lengths).bool()])  # (Σ lengths, H)
        first, last = lengths.cumsum(0) - lengths, len(found) - 1

        def padded(part: Tensor) -> Tensor:
            place = torch.arange(int(lengths[part].max()), device=found.device)
            rows = (first[part][:, None] + place).clamp(max=last)  # padding is masked later
            return F.embedding(rows, found)

        return padded

    def _batches(self, lengths: Tensor) -> list[Tensor]:
        """Split texts into batches, shortest first.

        Batches are large on a GPU or with packed weights, where padding is cheap; else lengths are similar.
        """
        order = lengths.argsort(stable=True)
        if lengths.device.type != "cpu" or self.packed is not None:
            return list(order.split(MAX_TEXTS if self.packed is None else PACKED_BATCH))
        size = (lengths[order].clamp(min=1).log() / math.log(LENGTH_RATIO)).floor()
        counts = size.unique_consecutive(return_counts=True)[1]
        return [
            part
            for alike in order.split(counts.tolist())
            for part in alike.split(max(1, min(MAX_TEXTS, MAX_CPU_TOKENS // int(lengths[alike[-1]]))))
        ]

    def with_images(self, ids: Tensor, lengths: Tensor, images: Bag) -> Tensor:
        """Encode token ids (n, T) and image tokens (n, i, V) as one sequence per row, (n, H): early fusion.

        Words beyond the network's last position are dropped.
        """
        counts = images.mask.sum(1)
        parts = self._batches(lengths + counts)
        rows = []
        with self._autocast(ids.device):
            for part in parts:
                words, most = ids[part, : int(lengths[part].max())], int(counts[part].max())
                shown = Bag(images.values[part, :most], images.mask[part, :most])
                run = self._words_first if self.visual_width is not None else self._images_first
                rows.append(_mean(*run(words, _mask(words, lengths[part]).bool(), shown)))
        return torch.cat(rows)[torch.cat(parts).argsort()]

    def _words_first(self, ids: Tensor, there: Tensor, images: Bag) -> tuple[Tensor, Tensor]:
        """Return hidden states (n, S, H) and mask from VisualBERT, whose images take no text positions."""
        ids, there = ids[:, : self.max_positions], there[:, : self.max_positions]
        visual = {"visual_embeds": images.values, "visual_attention_mask": images.mask.long()}
        some = images.mask.shape[1] > 0
        output = self._call(input_ids=ids, attention_mask=there.long(), **(visual if some else {}))
        return output.last_hidden_state, torch.cat([there, images.mask], dim=1)

    def _images_first(self, ids: Tensor, there: Tensor, images: Bag) -> tuple[Tensor, Tensor]:
        """Do the same with any other network; images come first, so that only words are dropped."""
        words = self._embed_tokens(ids)  # (n, T, H)
        tokens = torch.cat([images.values.expand(-1, -1, words.shape[2]).to(words), words], dim=1)
        mask = torch.cat([images.mask, there], dim=1)
        # Close gaps: positions must not depend on the number of images of other items in the batch.
        order = (~mask).long().argsort(dim=1, stable=True)[:, : self.max_positions]
        tokens = tokens.gather(1, order[..., None].expand(-1, -1, tokens.shape[2]))
        mask = mask.gather(1, order)
        output = self._call(inputs_embeds=tokens, attention_mask=mask.long())
        return output.last_hidden_state, mask

    def _embed_tokens(self, ids: Tensor) -> Tensor:
        """Look up token embeddings, (...) → (..., H)."""
        found: Tensor = self.network.get_input_embeddings()(ids)  # type: ignore[operator]  # of transformers
        return found

    def _run_trained(self, values: Tensor, lengths: Tensor) -> Tensor:
        if self.depth == "all":
            return self.encode(values, lengths)
        # only the shape of these ids is read
        ids = torch.zeros(values.shape[:2], dtype=torch.int64, device=values.device)
        output = self.cut.after(values, lambda: self._call(input_ids=ids, attention_mask=_mask(ids, lengths)))
        return self._pool(output.last_hidden_state, lengths)

    def _call(self, **inputs: Tensor) -> Any:
        with unplanned_attention(next(iter(inputs.values())).device):
            return self.network(**inputs)

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Run all layers on token ids (n, T) or token embeddings (n, T, H)."""
        if self.packed is not None and tokens.device.type == "cpu" and not torch.is_grad_enabled():
            return self.packed(tokens, lengths)
        name = "input_ids" if tokens.dim() == 2 else "inputs_embeds"
        output = self._call(**{name: tokens}, attention_mask=_mask(tokens, lengths))
        return self._pool(output.last_hidden_state, lengths)

    def _pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Pool hidden states, (n, T, H) → (n, H)."""
        if self.has_projection:
            last = hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
            projected: Tensor = self.network.text_projection(last)  # type: ignore[operator]  # a Linear
            return projected
        mask = _mask(hidden[..., 0], lengths)[..., None]
        return (hidden * mask).sum(1) / lengths.clamp(min=1)[:, None]

    def save(self, folder: Path) -> None:
        """Save configuration and tokenizer; weights are stored elsewhere."""
        self.network.config.save_pretrained(folder)  # type: ignore[union-attr, operator]  # of transformers
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        with TOKENIZER_LOCK:
            if backend is not None:  # drop the options of its last call or checkpoint
                backend.no_truncation()
                backend.no_padding()
            try:
                self.tokenizer.save_pretrained(folder)
            except Exception as error:  # tokenizers raises a bare Exception for errors of the disk
                if "(os error" not in str(error):
                    raise
                raise disk_error(folder, error) from None


def _max_positions(config: Any, embeddings: nn.Module) -> int | None:
    """Return the number of positions; RoBERTa and similar models count from after the padding index."""
    max_positions: int | None = getattr(config, "max_position_embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return max_positions - padding - 1 if max_positions is not None and padding is not None else max_positions


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Average unmasked states (n, S, H) → (n, H)."""
    total = hidden.masked_fill(~mask[..., None], 0.0).sum(1)
    return total / mask.sum(1).clamp(min=1)[:, None]


def _mask(like: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask (n, T) int64: 1 for tokens, 0 for padding."""
    return (torch.arange(like.shape[1], device=like.device) < lengths[:, None]).long()
