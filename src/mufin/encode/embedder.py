"""The embedder E: descriptors → pre-embeddings X̂⁰ → self-attention → bag X̂¹."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mufin.config import Config
from mufin.data.items import Items
from mufin.data.ragged import CPU, Ragged
from mufin.encode.attention import FeedForward, SelfAttention, Sum
from mufin.encode.bag import Bag, PackedBags
from mufin.encode.checkpoints import Layout
from mufin.encode.fast_forms import accelerate, text_encoder
from mufin.encode.features import (
    Batch,
    Descriptors,
    Features,
    Groups,
    Loader,
    Part,
    extract,
)  # fmt: skip
from mufin.encode.joint import Joint
from mufin.encode.network import Lite0
from mufin.encode.text import MIN_BF16_WIDTH, TextEncoder
from mufin.encode.vision import EarlyFeatures, VisionEncoder
from mufin.progress import SILENT, Task
from mufin.runtime.autograd import Dropout
from mufin.runtime.onednn import fast_dtype

ROWS_PER_CPU_PASS, ROWS_PER_PASS = 256, 2048  # descriptors that trained layers encode at a time


class Embedder(nn.Module):
    """X̂¹ = A_S(X̂⁰), X̂⁰ with one row per descriptor: P(E_T(text)) or P(E_V(image)), P the projection to D.

    With raw bags, an item is X̂⁰ together with x̂¹ = N(1ᵀ A_S(X̂⁰)). With early fusion, X̂⁰ is one row,
    P(E_T(all texts and E_V(images) of the item)).
    """

    device_marker: Tensor  # empty; its device is that of the embedder

    def __init__(self, config: Config, layout: Layout | None = None) -> None:
        """Load pre-trained encoders, or build those of a stored layout, whose weights are loaded later."""
        super().__init__()
        settings = config.embed
        self.dim = settings.dim
        early = settings.fusion == "early" and config.modalities != "text"
        self.register_buffer("device_marker", torch.zeros(0), persistent=False)
        self.text = text_encoder(config.text, layout, whole=early)
        self.text_projection = _projection(settings.projection, self.text.width, self.dim)
        self.vision: VisionEncoder | None = None
        self.stages: EarlyFeatures | None = None  # the name of stored tensors
        self.joint: Joint | None = None
        if config.modalities != "text":
            self.vision = VisionEncoder(config.vision, None if layout is None else layout.folder / "vision")
            kept = settings.stages and self.vision.early_features
            self.stages = EarlyFeatures(self.vision.width, self.vision.full_width) if kept else None
            seen = self.stages.width if self.stages is not None else self.vision.width
            if early:
                assert isinstance(self.text, TextEncoder)  # images enter before its first layer
                self.joint = Joint(self.text, seen)
            else:
                self.image_projection = _projection(settings.projection, seen, self.dim)
        self.dropout = Dropout(settings.input_dropout)
        self.raw = settings.bag == "raw"
        self.self_attention: nn.Module
        match settings.attention:
            case "attention":
                self.self_attention = SelfAttention(
                    self.dim, settings.blocks, settings.heads, settings.dropout
                )
            case "feedforward":
                self.self_attention = FeedForward(self.dim)
            case "sum":
                self.self_attention = Sum()
            case "none":
                self.self_attention = nn.Identity()

    @property
    def device(self) -> torch.device:
        return self.device_marker.device

    def train(self, mode: bool = True) -> Embedder:
        """Set the mode; skip visiting hundreds of modules if they are in eval mode already."""
        return self if not mode and not self.training else super().train(mode)

    def forward(self, batch: Batch) -> Bag:
        """Return X̂¹: values (B, m, D) and mask (B, m); with raw bags X̂⁰, and x̂¹ (B, D) as `whole`."""
        before = self.raw_bag(batch)
        after: Bag = self.self_attention(before)
        return replace(before, whole=after.vector()) if self.raw else after

    def raw_bag(self, batch: Batch) -> Bag:
        """Return X̂⁰: descriptors encoded one by one, or jointly per item, and projected to D."""
        batch = batch.to(self.device)
        seen = None
        if batch.image is not None and self.vision is not None:
            seen = self.dropout(self._image_rows(self.vision, batch.image))  # (n, H)
        if self.joint is not None:
            rows, points = self.joint(self.text, batch, seen)
            values, mask = self._empty(batch.size, 1)
            where = (points, torch.zeros_like(points))
            return Bag(*_place(values, mask, where, self.text_projection(self.dropout(rows))))
        values, mask = self._empty(batch.size, batch.width)
        if batch.image is not None and seen is not None:
            values, mask = _place(values, mask, batch.image.where, self.image_projection(seen))
        if batch.text is not None:
            rows = self.text_projection(self.dropout(self._run(self.text, batch.text)))
            values, mask = _place(values, mask, batch.text.where, rows)
        return Bag(values, mask)

    def _empty(self, size: int, width: int) -> tuple[Tensor, Tensor]:
        """Return values (B, m, D) and mask (B, m) of empty bags."""
        values = torch.zeros(size, width, self.dim, device=self.device)
        return values, torch.zeros(size, width, dtype=torch.bool, device=self.device)

    def _run(self, encoder: nn.Module, part: Part) -> Tensor:
        rows: Tensor = part.values[:, 0] if part.encoded else encoder(part.values, part.lengths)
        return part.each(rows.float())  # an encoder may compute in bf16

    def _image_rows(self, vision: VisionEncoder, part: Part) -> Tensor:
        """Encode each image; include early features if `embed.stages` is set."""
        return self._run(vision, part) if self.stages is None else self.stages(self._full_image_rows(part))

    def learn_scales(self, features: Features) -> None:
        """Estimate the scale of early image features."""
        if self.stages is not None:
            self.stages.learn(torch.from_numpy(np.ascontiguousarray(features.image.rows.flat)))

    def skip_early_features(self) -> None:
        """Stop computing early features if only compatibility reads them, which a service never uses."""
        if self.vision is not None and self.stages is None:
            self.vision.early_features = False

    @torch.no_grad()
    def encoded(self, features: Features, batch: int = 256) -> Features:
        """Replace features by the outputs of the current encoders, so that each is computed once."""
        if self.joint is not None:  # encodes an item's texts and images together
            return features
        training = self.training
        self.eval()
        parts = []
        for encoder, part in ((self.text, features.text), (self.vision, features.image)):
            if encoder is None or part.encoded or not len(part.which) or encoder.depth == 0:
                parts.append(part)
                continue
            used, which = np.unique(part.which, return_inverse=True)
            out = np.zeros((len(used), encoder.width), np.float32)
            order = np.argsort(part.rows.lengths[used], kind="stable")  # group similar lengths
            batch = ROWS_PER_PASS if self.device.type == "cuda" else ROWS_PER_CPU_PASS
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                values, lengths = (t.to(self.device) for t in part.rows.take(used[chosen]))
                out[chosen] = encoder(values, lengths).float().cpu().numpy()
            rows = Ragged(out, np.arange(len(used) + 1, dtype=np.int64))
            parts.append(Descriptors(rows, which.astype(np.int64), part.offsets, encoded=True))
        self.train(training)
        return replace(features, text=parts[0], image=parts[1])

    def features(self, items: Items, cached: bool = True, task: Task = SILENT) -> Features:
        """Return frozen-layer outputs for all descriptors of the items."""
        with self.eval_mode():
            return extract(items, self.text, self.vision, cached, task)

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Temporarily switch to eval mode; skipped if already set, since it takes a millisecond."""
        training = self.training
        if training:
            self.eval()
        try:
            yield
        finally:
            if training:
                self.train()

    @contextmanager
    def fast_eval(self) -> Iterator[None]:
        """Temporarily switch to eval mode, faster and less exact, for repeated passes."""
        training, text = self.training, self.text
        self.eval()
        wide = text.depth == "all" and text.width >= MIN_BF16_WIDTH
        if isinstance(text, TextEncoder) and wide and self.joint is None:
            text.pack(fast_dtype())
        on_gpu = self.device.type == "cuda"
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu):
                yield
        finally:
            if isinstance(text, TextEncoder):
                text.packed = None
            self.train(training)

    def place(self, device: torch.device, exact: bool) -> None:
        """Move loaded weights to a device; unless `exact`, use the fastest form for prediction."""
        for encoder in (self.text, self.vision):
            if encoder is not None and not exact:
                accelerate(encoder, device, one_pass=True)
        moved = exact or device.type != "cpu"
        if self.vision is not None and isinstance(self.vision.network, Lite0) and moved:
            self.vision.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch omits it
        self.to(device)

    @torch.no_grad()
    def embed(
        self,
        features: Features,
        groups: Groups,
        batch: int = 1024,
        task: Task = SILENT,
    ) -> PackedBags:
        """Return the packed bags X̂¹ of these points, without dropout."""
        with self.eval_mode():
            bags = [self(part) for part in self._batches(features, groups, batch, task)]
        return PackedBags.pack(bags, self.dim)

    def _batches(
        self, features: Features, groups: Groups, batch: int, task: Task = SILENT
    ) -> Iterator[Batch]:
        """Yield these points in batches, at least one; many points are assembled on the device."""
        n, device = len(groups), self.device if len(groups) > batch else CPU
        loader = Loader(features, groups, device)
        for points in torch.arange(n, device=device).split(batch):
            yield loader.batch(points)
            task.advance(len(points))

    @property
    def widths(self) -> list[int]:
        """Return the number of columns of `content` per encoder."""
        return [self.text.width, *([] if self.vision is None else [self.vision.full_width])]

    @property
    def blocks(self) -> list[slice]:
        """Return the columns of `content` for compatibility: text, then stage ends or last map of images."""
        text, vision = slice(0, self.text.width), self.vision
        if vision is None:
            return [text]
        if not vision.early_features:
            return [text, slice(text.stop, text.stop + vision.width)]
        start = text.stop + vision.width
        return [text, slice(start, start + Lite0.stage_width)]

    @torch.no_grad()
    def content(self, features: Features, groups: Groups, batch: int = 1024) -> Tensor:
        """Return each encoder's mean output per point, (n, Σ widths); NaN where there are no descriptors."""
        found = [torch.zeros(0, sum(self.widths), device=self.device)]
        with self.eval_mode():
            for each in self._batches(features, groups, batch):
                part = each.to(self.device)
                empty = torch.zeros(part.size, sum(self.widths), device=self.device).split(self.widths, dim=1)
                seen = [_mean(part.text, partial(self._run, self.text), empty[0])]
                if self.vision is not None:
                    seen.append(_mean(part.image, self._full_image_rows, empty[1]))
                found.append(torch.cat(seen, dim=1))
        return torch.cat(found)

    def _full_image_rows(self, part: Part) -> Tensor:
        assert self.vision is not None
        encode = self.vision.with_early_features
        rows = part.values[:, 0] if part.encoded else encode(part.values, part.lengths)
        return part.each(rows.float())

    def encoder_parameters(self) -> list[nn.Parameter]:
        """Return the trainable weights of the encoders."""
        networks = [encoder.network for encoder in (self.text, self.vision) if encoder is not None]
        return [p for network in networks for p in network.parameters() if p.requires_grad]

    def save(self, folder: Path) -> None:
        """Save encoder configurations; weights are stored with the model's other tensors."""
        self.text.save(folder / "text")
        if self.vision is not None:
            self.vision.save(folder / "vision")


def _projection(kind: str, width: int, dim: int) -> nn.Module:
    return nn.AdaptiveMaxPool1d(dim) if kind == "maxpool" else nn.Linear(width, dim)


def _mean(part: Part | None, encode: Callable[[Part], Tensor], empty: Tensor) -> Tensor:
    """Return the mean encoder output per point, (B, H) as `empty` (zeros); NaN if a point has none."""
    if part is None:
        return empty / 0
    total = empty.index_add(0, part.point, encode(part).float())
    return total / torch.bincount(part.point, minlength=len(empty))[:, None]  # 0 / 0 is NaN


def _place(values: Tensor, mask: Tensor, where: tuple[Tensor, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Write each row to its bag and slot."""
    return values.index_put(where, rows.float()), mask.index_put(where, mask.new_ones(()))
