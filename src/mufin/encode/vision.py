"""E_V, the image encoder: a frozen `prepare`, a trained `forward`, and early features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from copy import deepcopy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mufin.data.loading import Loaded, cores, loaded
from mufin.data.ragged import Ragged, offsets_of
from mufin.encode.checkpoints import load_transformer, stored_transformer
from mufin.encode.network import Cut, Lite0
from mufin.errors import ConfigError, EncoderError, PictureError
from mufin.runtime.recorded import Recorded, rounded_up
from mufin.runtime.sdpa import unplanned_attention
from mufin.settings import Vision

LITE0 = "efficientnet-lite0"
PIXELS_VERSION = 2  # version of the image preprocessing; a new one invalidates cached features
BATCH, GPU_BATCH = 64, 128  # images decoded at a time; on a GPU also encoded
CPU_BATCH = 8  # images at a time on a CPU: the maps of more exceed its cache, at half the speed
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


class VisionEncoder(nn.Module):
    """A ViT (its CLS token), a CNN or Swin (mean of the feature map) or CLIP's image tower (its projection).

    The network is always in eval mode: batch statistics stay as pre-trained, and dropout is off.
    """

    def __init__(self, settings: Vision, folder: Path | None = None) -> None:
        """Load the pre-trained model of the settings, or build the layout in `folder`, to be filled later."""
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
                raise ConfigError(
                    f"vision.size = {self.size}, but {name} takes {own_size}; use --set vision.size=none"
                )
            self.width = _width(self.network, config)
        keeps = isinstance(self.network, Lite0) and self.depth == 0
        self.early_features: bool | Literal["every"] = keeps and settings.stages
        widths = {False: 0, True: Lite0.stage_width, "every": Lite0.all_layers_width}
        self.full_width = self.width + widths[self.early_features]
        self.cut = Cut(self.network, self.depth, name)
        self.network.eval()
        if folder is None:
            ramp = torch.linspace(-1, 1, 3 * self.size**2).view(1, 3, self.size, self.size)
            self.cut.check(lambda: self.network(pixel_values=ramp), self._pool)
        self.folded: list[Lite0] = []  # a copy for prediction, made on first use
        self.constants = torch.tensor(self.mean), torch.tensor(self.std)
        self.recorded: Recorded | None = None  # the frozen network on a GPU

    def train(self, mode: bool = True) -> VisionEncoder:
        super().train(mode)
        self.network.eval()
        return self

    def _apply(self, *arguments: Any, **options: Any) -> VisionEncoder:
        """Move or convert all weights, and forget what was computed from them."""
        self.folded, self.recorded = [], None
        super()._apply(*arguments, **options)  # type: ignore[no-untyped-call]  # of torch
        return self

    def fingerprint(self) -> str:
        """Identify everything but the images that frozen-layer outputs depend on."""
        scale = hashlib.blake2b(json.dumps([self.mean, self.std]).encode(), digest_size=6).hexdigest()
        stages = {False: "", True: "-stages", "every": "-every-stage"}[self.early_features]
        return f"image-{PIXELS_VERSION}-{self.cut.fingerprint}-{scale}-{self.depth}-{self.size}{stages}"

    @torch.no_grad()
    def prepare(self, images: Sequence[Any]) -> Ragged:
        """Run the frozen layers: a vector, hidden states or pixels per image; no row for a broken image.

        Threads decode the next images while the network runs, unless torch uses all cores itself: its threads
        wait for one another, so a decoder on one core would delay them all.
        """
        on_gpu = self._device.type == "cuda"
        overlap, batch = on_gpu or torch.get_num_threads() < cores(), GPU_BATCH if on_gpu else BATCH
        readable = np.zeros(len(images), np.int64)

        def pixels(found: Iterator[Loaded]) -> Iterator[np.ndarray]:
            for place, image in enumerate(found):
                if not isinstance(image, PictureError):
                    readable[place] = 1
                    yield image

        with closing(loaded(images, self.size, batch, overlap)) as found:
            batches = self._batches(pixels(found), batch)
            rows = [self._run_frozen(self._stacked(some)) for some in batches]
        nothing = torch.zeros(0, self.size, self.size, 3, dtype=torch.uint8)
        return Ragged(np.concatenate(rows or [self._run_frozen(nothing)]), offsets_of(readable))

    def _batches(self, pixels: Iterator[np.ndarray], batch: int) -> Iterator[list[np.ndarray]]:
        """Yield batches of images; on a CPU only of 8, 4, 2 or 1.

        oneDNN prepares and keeps convolutions for each batch size.
        """
        if self.depth == "all" or self._device.type == "cuda":
            while some := list(islice(pixels, batch)):
                yield some
            return
        while some := list(islice(pixels, CPU_BATCH)):
            for size in (CPU_BATCH, 4, 2, 1):
                if len(some) & size:
                    yield some[:size]
                    some = some[size:]

    def _run_frozen(self, pixels: Tensor) -> Any:
        """Run the frozen layers, (n, S, S, 3) uint8 → (n, ...)."""
        if self.depth == "all" or not len(pixels):
            return pixels.numpy() if self.depth == "all" else np.zeros((0, *self._shape()), self._dtype())
        if self.depth == 0:
            return self._frozen_rows(pixels).cpu().numpy()
        values = self._normalise(pixels)
        return self.cut.before(lambda: self._call(values)).half().cpu().numpy()

    @property
    def _device(self) -> torch.device:
        return next(self.network.parameters()).device

    def _stacked(self, images: list[np.ndarray]) -> Tensor:
        """Return images as one tensor, (n, S, S, 3) uint8; for a GPU in pinned memory."""
        pinned = self._device.type == "cuda" and self.depth != "all"
        stacked = torch.empty(len(images), *images[0].shape, dtype=torch.uint8, pin_memory=pinned)
        np.stack(images, out=stacked.numpy())
        return stacked

    def _frozen_rows(self, pixels: Tensor) -> Tensor:
        """Run the whole network, (n, S, S, 3) uint8 → (n, full_width) f32; on a GPU as a recorded graph."""
        network = self._inference_network()
        if self._device.type != "cuda" or not isinstance(network, Lite0):
            return self._rows(network, pixels.to(self._device))
        if self.recorded is None:
            self.recorded = Recorded(partial(self._rows, network))
        given = pixels.to(self._device, non_blocking=True)
        more = rounded_up(len(given)) - len(given)
        rows: Tensor = self.recorded(F.pad(given, (0, 0, 0, 0, 0, 0, 0, more)))
        return rows[: len(given)]

    def _rows(self, network: nn.Module, pixels: Tensor) -> Tensor:
        values = self._normalise(pixels)
        if self.early_features and isinstance(network, Lite0):
            return network.with_early_features(values, self.early_features == "every").float()
        with unplanned_attention(values.device):
            return self._pool(network(pixel_values=values)).float()

    def _inference_network(self) -> nn.Module:
        """Return the frozen network, in a faster layout of the same weights if there is one."""
        if not isinstance(self.network, Lite0) or self.network.is_folded:
            return self.network
        if not self.folded:
            copy = deepcopy(self.network)
            copy.fold()
            self.folded.append(copy)  # appended last: other threads never see an unfinished copy
        return self.folded[0]

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of a prepared row, from a white image."""
        white = torch.full((1, self.size, self.size, 3), 255, dtype=torch.uint8)
        return tuple(self._run_frozen(white).shape[1:])

    def _dtype(self) -> Any:
        return np.float32 if self.depth == 0 else np.float16

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Run the trained layers: prepared rows (n, 1, ...) → (n, H)."""
        return self.with_early_features(values, lengths)[:, : self.width]

    def with_early_features(self, values: Tensor, lengths: Tensor) -> Tensor:
        """Run the trained layers; append early features if they are kept, (n, full_width)."""
        values = values[:, 0]
        if self.depth == 0:
            return values
        if self.depth == "all":
            pixels = self._normalise(values)
            if self.early_features and isinstance(self.network, Lite0):
                return self.network.with_early_features(pixels, self.early_features == "every")
            return self._pool(self._call(pixels))
        like = next(self.network.parameters())
        pixels = like.new_zeros(1).expand(len(values), 3, self.size, self.size)  # only the shape is read
        return self._pool(self.cut.after(values, lambda: self._call(pixels)))

    def _call(self, pixels: Tensor) -> Any:
        with unplanned_attention(pixels.device):
            return self.network(pixel_values=pixels)

    def _normalise(self, pixels: Tensor) -> Tensor:
        """Normalise (n, S, S, 3) uint8 → (n, 3, S, S), channels last in memory."""
        like = next(self.network.parameters())
        mean, std = self._on_device(like.device)
        return ((pixels.to(like.device).float() - mean) / std).to(like.dtype).permute(0, 3, 1, 2)

    def _on_device(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return mean and deviation; copied to a device once, since a recording must not copy."""
        if self.constants[0].device != device:
            self.constants = (self.constants[0].to(device), self.constants[1].to(device))
        return self.constants

    def _pool(self, output: Any) -> Tensor:
        if hasattr(output, "image_embeds"):
            embeds: Tensor = output.image_embeds
            return embeds
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:  # unweighted means, or followed by the last norm (ConvNeXt)
            return pooled.flatten(1)
        hidden: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
        return hidden.mean(dim=(2, 3)) if hidden.dim() == 4 else hidden[:, 0]

    def save(self, folder: Path) -> None:
        """Save configuration and normalisation; weights are stored elsewhere."""
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(self.network, Lite0):
            (folder / "config.json").write_text(json.dumps({"model_type": LITE0}))
            return
        self.network.config.save_pretrained(folder)  # type: ignore[union-attr, operator]  # of transformers
        normalisation = {"image_mean": [m / 255 for m in self.mean], "image_std": [s / 255 for s in self.std]}
        (folder / "preprocessor_config.json").write_text(json.dumps(normalisation))


def _normalisation(name: str) -> tuple[list[float], list[float]]:
    """Return mean and deviation per channel, on the scale 0–255."""
    from transformers.image_processing_base import ImageProcessingMixin

    try:
        local = Path(name).is_dir()
        values, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=local)
    except (OSError, ValueError):
        values = IMAGENET  # a checkpoint without preprocessor_config.json
    mean, std = (values.get(key) or IMAGENET[key] for key in ("image_mean", "image_std"))
    if not all(len(each) == 3 and all(isinstance(x, int | float) for x in each) for each in (mean, std)):
        raise EncoderError(f"{name}: image_mean and image_std must be three numbers each, not {mean}, {std}")
    return [255 * m for m in mean], [255 * s for s in std]


def _width(network: nn.Module, config: Any) -> int:
    if hasattr(network, "visual_projection"):
        return int(config.projection_dim)
    return int(config.hidden_sizes[-1] if hasattr(config, "hidden_sizes") else config.hidden_size)


MIN_DEVIATION = 1e-3  # columns that vary less carry no information


class EarlyFeatures(nn.Module):
    """[v, s (u − μ) / σ] for the last map v and early features u: μ, σ per column, s the mean σ of v.

    Scales of early columns differ by a factor of a thousand; unscaled, a few large ones would dominate.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, last: int, width: int) -> None:
        """Rows have `width` columns; the first `last` are the last map."""
        super().__init__()
        self.last, self.width = last, width
        self.register_buffer("mean", torch.zeros(width - last))
        self.register_buffer("scale", torch.ones(width - last))

    def learn(self, rows: Tensor) -> None:
        """Estimate μ, σ and s from rows (n, width)."""
        if len(rows) < 2:
            return
        deviation, mean = torch.std_mean(rows.float(), dim=0)
        self.mean.copy_(mean[self.last :])
        self.scale.copy_(deviation[: self.last].mean() / deviation[self.last :].clamp(min=MIN_DEVIATION))

    def forward(self, rows: Tensor) -> Tensor:
        """Scale early columns, (n, width) → (n, width)."""
        last, early = rows[:, : self.last], rows[:, self.last :]
        return torch.cat([last, (early - self.mean) * self.scale], dim=1)
