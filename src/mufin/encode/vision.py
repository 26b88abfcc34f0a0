"""E_V, the image encoder: a frozen `prepare`, a trained `forward`, and features of early layers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mufin.data.loading import Loaded, cores, loaded
from mufin.data.ragged import Ragged, offsets_of
from mufin.encode.checkpoints import load_transformer, stored_transformer
from mufin.encode.network import Cut, Lite0
from mufin.errors import ConfigError, EncoderError, PictureError
from mufin.settings import Vision

LITE0 = "efficientnet-lite0"
PIXELS = 2  # version of what images become before the network: a new one computes features anew
TOGETHER = 8  # pictures that a processor takes at a time: the maps of more leave its cache, at half the speed
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


class VisionEncoder(nn.Module):
    """A ViT (its CLS token), a CNN or Swin (mean of the feature map) or CLIP's image tower (its projection).

    Its batch statistics and dropout stay as they were pre-trained: the network is never in training mode.
    """

    def __init__(self, settings: Vision, folder: Path | None = None) -> None:
        """Pre-trained weights by the settings' name, or the layout saved in `folder`, to be filled later."""
        super().__init__()
        self.depth = settings.train_layers
        name = str(folder or settings.model)
        if settings.model == "offline":
            self.network: nn.Module = Lite0(pretrained=True) if folder is None else Lite0.stored()
            self.mean, self.std, self.width = [127.0] * 3, [128.0] * 3, Lite0.width
            self.size = settings.size or 224
        else:
            self.network = (
                load_transformer(name, "vision") if folder is None else stored_transformer(folder, "vision")
            )
            self.mean, self.std = _normalisation(name)
            config: Any = self.network.config
            own_size: int | None = getattr(config, "image_size", None)
            self.size = settings.size or own_size or 224
            if own_size is not None and self.size != own_size:
                raise ConfigError(f"vision.size = {self.size}, but {name} takes {own_size}; leave it out")
            self.width = _width(self.network, config)
        keeps = isinstance(self.network, Lite0) and self.depth == 0
        self.stages: bool | Literal["every"] = keeps and settings.stages
        widths = {False: 0, True: Lite0.stage_width, "every": Lite0.every_width}
        self.evidence_width = self.width + widths[self.stages]
        self.cut = Cut(self.network, self.depth, name)
        self.network.eval()
        if folder is None:
            ramp = torch.linspace(-1, 1, 3 * self.size**2).view(1, 3, self.size, self.size)
            self.cut.check(lambda: self.network(pixel_values=ramp), self._pool)
        self.folded: list[Lite0] = []  # a copy that predicts, made when it is first asked

    def train(self, mode: bool = True) -> VisionEncoder:
        super().train(mode)
        self.network.eval()
        return self

    def fingerprint(self) -> str:
        """What the frozen outputs depend on beside the pictures themselves."""
        scale = hashlib.blake2b(json.dumps([self.mean, self.std]).encode(), digest_size=6).hexdigest()
        stages = {False: "", True: "-stages", "every": "-every-stage"}[self.stages]
        return f"image-{PIXELS}-{self.cut.fingerprint}-{scale}-{self.depth}-{self.size}{stages}"

    @torch.no_grad()
    def prepare(self, pictures: Sequence[Any], batch: int = 64) -> Ragged:
        """The frozen part: a vector, hidden states at the cut or pixels; no row for a broken picture.

        Threads decode the next images while the network runs, unless it keeps all cores busy itself: torch's
        threads wait for one another, and each for the core that a decoder has taken.
        """
        overlap = next(self.network.parameters()).is_cuda or torch.get_num_threads() < cores()
        readable = np.zeros(len(pictures), np.int64)

        def pixels(found: Iterator[Loaded]) -> Iterator[np.ndarray]:
            for place, image in enumerate(found):
                if not isinstance(image, PictureError):
                    readable[place] = 1
                    yield image

        with closing(loaded(pictures, self.size, batch, overlap)) as found:
            portions = self._portions(pixels(found), batch)
            rows = [self._frozen(torch.from_numpy(np.stack(some))) for some in portions]
        nothing = torch.zeros(0, self.size, self.size, 3, dtype=torch.uint8)
        return Ragged(np.concatenate(rows or [self._frozen(nothing)]), offsets_of(readable))

    def _portions(self, pixels: Iterator[np.ndarray], batch: int) -> Iterator[list[np.ndarray]]:
        """Images that go through the network together.

        On a CPU 8, 4, 2 or 1: convolutions are prepared, and kept, for each number of images that comes.
        """
        if self.depth == "all" or next(self.network.parameters()).is_cuda:
            while some := list(islice(pixels, batch)):
                yield some
            return
        while some := list(islice(pixels, TOGETHER)):
            for size in (TOGETHER, 4, 2, 1):
                if len(some) & size:
                    yield some[:size]
                    some = some[size:]

    def _frozen(self, pixels: Tensor) -> Any:
        """(n, S, S, 3) uint8 → (n, ...)."""
        if self.depth == "all" or not len(pixels):
            return pixels.numpy() if self.depth == "all" else np.zeros((0, *self._shape()), self._dtype())
        values = self._normalise(pixels)
        if self.depth == 0:
            network = self._at_rest()
            if self.stages and isinstance(network, Lite0):
                return network.stages(values, self.stages == "every").float().cpu().numpy()
            return self._pool(network(pixel_values=values)).float().cpu().numpy()
        return self.cut.before(lambda: self.network(pixel_values=values)).half().cpu().numpy()

    def _at_rest(self) -> nn.Module:
        """The network of which nothing is trained: on a processor by a faster layout of the same weights."""
        if not isinstance(self.network, Lite0) or next(self.network.parameters()).device.type != "cpu":
            return self.network
        if self.network.is_folded:  # a model that only predicts
            return self.network
        if not self.folded:
            copy = deepcopy(self.network)
            copy.fold()
            self.folded.append(copy)  # whole, for whoever looks from another thread
        return self.folded[0]

    def _shape(self) -> tuple[int, ...]:
        """Of one prepared row, found by preparing a white picture."""
        white = torch.full((1, self.size, self.size, 3), 255, dtype=torch.uint8)
        return tuple(self._frozen(white).shape[1:])

    def _dtype(self) -> Any:
        return np.float32 if self.depth == 0 else np.float16

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """The trained part: prepared rows (n, 1, ...) → (n, H)."""
        return self.evidence(values, lengths)[:, : self.width]

    def evidence(self, values: Tensor, lengths: Tensor) -> Tensor:
        """All that is known of prepared rows: earlier stages too, where they are kept."""
        values = values[:, 0]
        if self.depth == 0:
            return values
        if self.depth == "all":
            pixels = self._normalise(values)
            if self.stages and isinstance(self.network, Lite0):
                return self.network.stages(pixels, self.stages == "every")
            return self._pool(self.network(pixel_values=pixels))
        like = next(self.network.parameters())
        pixels = like.new_zeros(1).expand(len(values), 3, self.size, self.size)  # only their shape is read
        return self._pool(self.cut.after(values, lambda: self.network(pixel_values=pixels)))

    def _normalise(self, pixels: Tensor) -> Tensor:
        """(n, S, S, 3) uint8 → (n, 3, S, S), channels last in memory."""
        like = next(self.network.parameters())
        mean, std = torch.tensor(self.mean, device=like.device), torch.tensor(self.std, device=like.device)
        return ((pixels.to(like.device).float() - mean) / std).to(like.dtype).permute(0, 3, 1, 2)

    def _pool(self, output: Any) -> Tensor:
        if hasattr(output, "image_embeds"):
            embeds: Tensor = output.image_embeds
            return embeds
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:  # means without weights, or with the last norm behind them (ConvNeXt)
            return pooled.flatten(1)
        hidden: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
        return hidden.mean(dim=(2, 3)) if hidden.dim() == 4 else hidden[:, 0]

    def save(self, folder: Path) -> None:
        """What rebuilds the encoder but its weights: configuration and normalisation."""
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self.network, Lite0):
            (folder / "config.json").write_text(json.dumps({"model_type": LITE0}))
            return
        self.network.config.save_pretrained(folder)  # type: ignore[union-attr, operator]  # of transformers
        normalisation = {"image_mean": [m / 255 for m in self.mean], "image_std": [s / 255 for s in self.std]}
        (folder / "preprocessor_config.json").write_text(json.dumps(normalisation))


def _normalisation(name: str) -> tuple[list[float], list[float]]:
    """Mean and deviation of each channel, on the scale 0–255."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        values, _ = ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):
        values = IMAGENET  # a checkpoint without a processor file
    mean, std = (values.get(key) or IMAGENET[key] for key in ("image_mean", "image_std"))
    if not all(len(each) == 3 and all(isinstance(x, int | float) for x in each) for each in (mean, std)):
        raise EncoderError(f"{name}: image_mean and image_std must be three numbers each, not {mean}, {std}")
    return [255 * m for m in mean], [255 * s for s in std]


def _width(network: nn.Module, config: Any) -> int:
    if hasattr(network, "visual_projection"):
        return int(config.projection_dim)
    return int(config.hidden_sizes[-1] if hasattr(config, "hidden_sizes") else config.hidden_size)


LEAST = 1e-3  # a column that varies less says nothing


class Stages(nn.Module):
    """[v, s (u − μ) / σ] of a last map v and earlier stages u: μ, σ column by column, s the mean σ of v.

    Early columns differ in scale by a thousand times; unbrought to that of v, few would be all that counts.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, last: int, width: int) -> None:
        """Rows of `width` columns, the first `last` of which are the last map's."""
        super().__init__()
        self.last, self.width = last, width
        self.register_buffer("mean", torch.zeros(width - last))
        self.register_buffer("scale", torch.ones(width - last))

    def learn(self, rows: Tensor) -> None:
        """μ, σ and s of these rows (n, width)."""
        if len(rows) < 2:
            return
        deviation, mean = torch.std_mean(rows.float(), dim=0)
        self.mean.copy_(mean[self.last :])
        self.scale.copy_(deviation[: self.last].mean() / deviation[self.last :].clamp(min=LEAST))

    def forward(self, rows: Tensor) -> Tensor:
        """(n, width) → (n, width)."""
        last, early = rows[:, : self.last], rows[:, self.last :]
        return torch.cat([last, (early - self.mean) * self.scale], dim=1)
