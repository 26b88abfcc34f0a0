"""E_T: texts to vectors of the encoder's native width."""

from __future__ import annotations

import hashlib
import json
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

from mufin.data.ragged import Ragged
from mufin.encode.bag import Bag
from mufin.encode.case import tokens_of_case, with_case
from mufin.encode.checkpoints import (
    load_pretrained,
    load_stored,
    load_transformer,
    offline_text_folder,
    stored_transformer,
)
from mufin.encode.network import Cut
from mufin.errors import ConfigError
from mufin.runtime.autograd import lighten
from mufin.runtime.fast_bert import FastBert, supports
from mufin.runtime.onednn import fast_dtype
from mufin.settings import Layers, Text

TOGETHER = 512  # texts at most that go through the network at a time
TOKENS = 1 << 14  # the same, padding counted, on a CPU
PACKED = 64  # the same where it is laid out anew for prediction
LIKE = 1.4  # lengths that differ by a smaller factor are padded to the longer one on a CPU
WIDE = 256  # columns from which training in bf16 is faster, on a processor that has it
TOKENIZING = threading.Lock()  # a tokenizer notes in itself how it is called
LONGEST_TEXT = 20_000  # characters the tokenizer sees: far beyond any max_length, and safe with a 1 MB text


class TextEncoder(nn.Module):
    """A transformer over tokens, then the mask-aware mean (CLIP: its own projection of the last token)."""

    def __init__(self, settings: Text, folder: Path | None = None, whole: bool = False) -> None:
        """Pre-trained weights by the settings' name, or the layout saved in `folder`, to be filled later.

        `whole`: every layer runs each time, frozen or not, since images join the words before the first.
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
            self.tokenizer = load_stored(hf.AutoTokenizer.from_pretrained, folder)
        self.max_length = settings.max_length
        self.depth: Layers = "all" if whole else settings.train_layers  # the layers that `forward` runs
        config: Any = self.network.config
        self.projects = hasattr(self.network, "text_projection")
        self.width: int = config.projection_dim if self.projects else config.hidden_size
        self.visual_width: int | None = getattr(config, "visual_embedding_dim", None)  # VisualBERT's
        self.cut = Cut(self.network, settings.train_layers, name)
        if folder is None and not whole:
            ids = torch.zeros(1, 3, dtype=torch.int64)  # no text has room for fewer tokens
            call = partial(self.network, input_ids=ids, attention_mask=torch.ones_like(ids))
            self.cut.check(call, lambda output: output.last_hidden_state)
        lighten(self.network)
        self.packed: FastBert | None = None
        told = settings.case and settings.train_layers == "all"
        self.case = tokens_of_case(self.tokenizer) if told else []
        self.places = _places(config, self.cut.embeddings)
        if self.places is not None and self.max_length > self.places:
            raise ConfigError(
                f"text.max_length = {self.max_length}, but {name} has places for {self.places} tokens"
            )

    def pack(self, dtype: torch.dtype = torch.float32) -> bool:
        """Predict on a CPU by a faster layout of the same weights, until they are trained again."""
        config: Any = self.network.config
        weight = next(self.network.parameters())
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and supports(config.to_dict()):
            self.packed = FastBert(config.to_dict(), self.network.state_dict(), dtype)
        return self.packed is not None

    def train(self, mode: bool = True) -> TextEncoder:
        """Like every module; weights that may change are not those that were packed."""
        self.packed = None if mode else self.packed
        super().train(mode)
        self.cut.rest()
        return self

    @cached_property
    def empty(self) -> list[int]:
        """The tokens of an empty text: those that begin and end every text."""
        with TOKENIZING:
            ids: list[int] = self.tokenizer("")["input_ids"]
        return ids

    def fingerprint(self) -> str:
        """What the frozen outputs depend on beside the texts themselves."""
        words = hash_of_rules(_rules(self.tokenizer))
        case = "-case" if self.case else ""
        return f"text-{self.cut.fingerprint}-{words}-{self.depth}-{self.max_length}{case}"

    @torch.no_grad()
    def prepare(self, texts: Sequence[str], batch: int = 128) -> Ragged:
        """The frozen part: a (1, H) vector a text if no layer is trained, (T, H) hidden states at the cut, or
        (T,) token ids if every layer is."""
        shortened = [text[:LONGEST_TEXT] for text in texts]
        with TOKENIZING:
            room = self.max_length - (1 if self.case else 0)
            ids = self.tokenizer(shortened, truncation=True, max_length=room)["input_ids"]
        if self.case:
            ids = with_case(ids, shortened, self.case)
        tokens = Ragged.of([np.array(row, dtype=np.int64) for row in ids])
        if self.depth == "all":
            return tokens
        rows: list[Any] = [None] * len(tokens)
        order = np.argsort(tokens.lengths, kind="stable")  # like lengths together: little padding
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            for place, row in zip(chosen, self._frozen(*tokens.take(chosen)), strict=True):
                rows[place] = row
        return Ragged.of(rows)

    def _frozen(self, ids: Tensor, lengths: Tensor) -> list[Any]:
        device = next(self.network.parameters()).device
        ids, lengths = ids.to(device), lengths.to(device)
        if self.depth == 0:
            return [row[None] for row in self._run(ids, lengths).float().cpu().numpy()]
        hidden = self.cut.before(lambda: self.network(input_ids=ids, attention_mask=_mask(ids, lengths)))
        return [row[:n].half().cpu().numpy() for row, n in zip(hidden, lengths.tolist(), strict=True)]

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """The trained part: prepared rows (n, T, ...) → (n, H); like lengths together, little padding."""
        if self.depth == 0:
            return values[:, 0]
        parts = self._parts(lengths)
        tokens = self._tokens(values, lengths)
        with self._fast(values.device):
            rows = [self._trained(tokens(part), lengths[part]) for part in parts]
        return torch.cat(rows)[torch.cat(parts).argsort()]

    def _fast(self, device: torch.device) -> torch.autocast:
        """Train in bf16, as a GPU does anyway; a small network would gain nothing."""
        half = device.type == "cpu" and self.training and self.width >= WIDE
        return torch.autocast("cpu", fast_dtype(), enabled=half and fast_dtype() != torch.float32)

    def _tokens(self, values: Tensor, lengths: Tensor) -> Callable[[Tensor], Tensor]:
        """What gives the prepared rows (p, T, ...) of a part (p,) of the texts, padded to its longest.

        Words that are trained are looked up for all parts at once: the gradient of each lookup is as large as
        the vocabulary.
        """
        if self.depth != "all" or not self.training or self.projects:
            return lambda part: values[part, : int(lengths[part].max())]
        found = self._looked_up(values[_mask(values, lengths).bool()])  # (Σ lengths, H)
        first, last = lengths.cumsum(0) - lengths, len(found) - 1

        def padded(part: Tensor) -> Tensor:
            place = torch.arange(int(lengths[part].max()), device=found.device)
            rows = (first[part][:, None] + place).clamp(max=last)  # padding is masked, whatever stands there
            return F.embedding(rows, found)

        return padded

    def _parts(self, lengths: Tensor) -> list[Tensor]:
        """Which texts go through the network together, shortest first: few parts on a GPU and where padding
        costs nothing, else parts of like lengths."""
        order = lengths.argsort(stable=True)
        if lengths.device.type != "cpu" or self.packed is not None:
            return list(order.split(TOGETHER if self.packed is None else PACKED))
        size = (lengths[order].clamp(min=1).log() / math.log(LIKE)).floor()
        counts = size.unique_consecutive(return_counts=True)[1]
        return [
            part
            for alike in order.split(counts.tolist())
            for part in alike.split(max(1, min(TOGETHER, TOKENS // int(lengths[alike[-1]]))))
        ]

    def with_images(self, ids: Tensor, lengths: Tensor, images: Bag) -> Tensor:
        """(n, H) of token ids (n, T) and image tokens (n, i, V), each row one sequence: early fusion.

        Words for which the network has no places are cut off.
        """
        counts = images.mask.sum(1)
        parts = self._parts(lengths + counts)
        rows = []
        with self._fast(ids.device):
            for part in parts:
                words, most = ids[part, : int(lengths[part].max())], int(counts[part].max())
                shown = Bag(images.values[part, :most], images.mask[part, :most])
                run = self._words_first if self.visual_width is not None else self._images_first
                rows.append(_mean(*run(words, _mask(words, lengths[part]).bool(), shown)))
        return torch.cat(rows)[torch.cat(parts).argsort()]

    def _words_first(self, ids: Tensor, there: Tensor, images: Bag) -> tuple[Tensor, Tensor]:
        """Hidden states (n, S, H) and mask by VisualBERT, which has no places for images to take."""
        ids, there = ids[:, : self.places], there[:, : self.places]
        visual = {"visual_embeds": images.values, "visual_attention_mask": images.mask.long()}
        some = images.mask.shape[1] > 0
        output = self.network(input_ids=ids, attention_mask=there.long(), **(visual if some else {}))
        return output.last_hidden_state, torch.cat([there, images.mask], dim=1)

    def _images_first(self, ids: Tensor, there: Tensor, images: Bag) -> tuple[Tensor, Tensor]:
        """The same by any other network, as if images were words: it keeps them when words are cut off."""
        words = self._looked_up(ids)  # (n, T, H)
        tokens = torch.cat([images.values.expand(-1, -1, words.shape[2]).to(words), words], dim=1)
        mask = torch.cat([images.mask, there], dim=1)
        # No gaps: where a word stands must not depend on how many images its neighbours in the batch have.
        order = (~mask).long().argsort(dim=1, stable=True)[:, : self.places]
        tokens = tokens.gather(1, order[..., None].expand(-1, -1, tokens.shape[2]))
        mask = mask.gather(1, order)
        output = self.network(inputs_embeds=tokens, attention_mask=mask.long())
        return output.last_hidden_state, mask

    def _looked_up(self, ids: Tensor) -> Tensor:
        """The vector of each token, (...) → (..., H)."""
        found: Tensor = self.network.get_input_embeddings()(ids)  # type: ignore[operator]  # of transformers
        return found

    def _trained(self, values: Tensor, lengths: Tensor) -> Tensor:
        if self.depth == "all":
            return self._run(values, lengths)
        # of these ids only the shape is read
        ids = torch.zeros(values.shape[:2], dtype=torch.int64, device=values.device)
        output = self.cut.after(
            values, lambda: self.network(input_ids=ids, attention_mask=_mask(ids, lengths))
        )
        return self._pool(output.last_hidden_state, lengths)

    def _run(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Token ids (n, T), or their looked-up vectors (n, T, H), through all layers."""
        if self.packed is not None and tokens.device.type == "cpu" and not torch.is_grad_enabled():
            return self.packed(tokens, lengths)
        name = "input_ids" if tokens.dim() == 2 else "inputs_embeds"
        output = self.network(**{name: tokens}, attention_mask=_mask(tokens, lengths))
        return self._pool(output.last_hidden_state, lengths)

    def _pool(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(n, T, H) → (n, H)."""
        if self.projects:
            last = hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
            projected: Tensor = self.network.text_projection(last)  # type: ignore[operator]  # a Linear
            return projected
        mask = _mask(hidden[..., 0], lengths)[..., None]
        return (hidden * mask).sum(1) / lengths.clamp(min=1)[:, None]

    def save(self, folder: Path) -> None:
        """What rebuilds the encoder but its weights: configuration and tokenizer files."""
        self.network.config.save_pretrained(folder)  # type: ignore[union-attr, operator]  # of transformers
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:  # it remembers how it was last called: no part of what it is
            backend.no_truncation()
        self.tokenizer.save_pretrained(folder)


def _places(config: Any, embeddings: nn.Module) -> int | None:
    """How many tokens the network has positions for; RoBERTa and its like count from behind the padding."""
    places: int | None = getattr(config, "max_position_embeddings", None)
    padding = getattr(embeddings, "padding_idx", None)
    return places - padding - 1 if places is not None and padding is not None else places


def _rules(tokenizer: Any) -> dict[str, Any]:
    """What turns texts into numbers."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return {"vocabulary": tokenizer.get_vocab()} if backend is None else dict(json.loads(backend.to_str()))


def hash_of_rules(rules: dict[str, Any]) -> str:
    """A hash of a tokenizer: token ids mean nothing under another vocabulary."""
    lasting = {name: rule for name, rule in rules.items() if name not in ("truncation", "padding")}
    return hashlib.blake2b(json.dumps(lasting, sort_keys=True).encode(), digest_size=6).hexdigest()


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states (n, S, H) that are there, (n, H)."""
    total = hidden.masked_fill(~mask[..., None], 0.0).sum(1)
    return total / mask.sum(1).clamp(min=1)[:, None]


def _mask(like: Tensor, lengths: Tensor) -> Tensor:
    """(n, T) int64: 1 for a token, 0 for padding."""
    return (torch.arange(like.shape[1], device=like.device) < lengths[:, None]).long()
