"""Export the encoders, the projections and A_S as ONNX graphs.

    text.onnx    ids (n, T) int64, mask (n, T) int64       → rows (n, D)
    image.onnx   pixels (n, S, S, 3) uint8                 → rows (n, D)
    bag.onnx     rows (B, m, D), mask (B, m) bool          → vectors (B, D), of length 1

n, T, B and m are dynamic; T is at most the maximum length.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mufin.encode.bag import Bag
from mufin.encode.embedder import Embedder
from mufin.encode.text import TextEncoder
from mufin.errors import UsageError

INSTALL = 'pip install "mufin[onnx]"'
Graph = tuple[nn.Module, Mapping[str, Tensor], Mapping[str, dict[int, Any]], str]


def export(embedder: Embedder, folder: Path) -> list[str]:
    """Write the graphs of an exactly loaded embedder into a folder, and return their file names."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError:
        raise UsageError(f"exporting to ONNX needs more packages; run: {INSTALL}") from None
    if embedder.joint is not None:
        raise UsageError('embed.fusion = "early" encodes texts and images together, which cannot be exported')
    graphs = _graphs(deepcopy(embedder).eval().cpu())  # a copy, since the exporter changes settings
    with _quiet():
        for name, graph in graphs.items():
            _write(folder / name, *graph)
    return list(graphs)


def _graphs(embedder: Embedder) -> dict[str, Graph]:
    """Return module, example inputs, dynamic dimensions and output name of each graph."""
    any_, rows = torch.export.Dim.DYNAMIC, torch.zeros(2, 3, embedder.dim)
    free = {0: any_, 1: any_}
    mask = torch.tensor([[True, True, False], [True, True, True]])
    graphs: dict[str, Graph] = {
        "bag.onnx": (_Vector(embedder), {"rows": rows, "mask": mask}, {"rows": free, "mask": free}, "vectors")
    }
    assert isinstance(embedder.text, TextEncoder)
    text = {"ids": torch.ones(2, 5, dtype=torch.int64), "mask": torch.ones(2, 5, dtype=torch.int64)}
    text["mask"][0, 3:] = 0
    graphs["text.onnx"] = (_Text(embedder), text, {"ids": free, "mask": free}, "rows")
    if embedder.vision is not None:
        size = embedder.vision.size
        pixels = torch.zeros(2, size, size, 3, dtype=torch.uint8)
        graphs["image.onnx"] = (_Image(embedder), {"pixels": pixels}, {"pixels": {0: any_}}, "rows")
    return graphs


def _write(
    path: Path, module: nn.Module, inputs: Mapping[str, Tensor], free: Mapping[str, Any], output: str
) -> None:
    """Export a module, weights inside the file."""
    program = torch.onnx.export(
        module, (), kwargs=dict(inputs), dynamic_shapes=dict(free), input_names=list(inputs),
        output_names=[output], dynamo=True, verbose=False,
    )  # fmt: skip
    assert program is not None
    program.save(str(path), external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages, and disable gradients."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _exportable(projection: nn.Module, width: int, dim: int) -> nn.Module:
    """Return the projection from this width in operations that ONNX has."""
    if isinstance(projection, nn.AdaptiveMaxPool1d):
        return _MaxPool(width, dim)
    return projection


class _Text(nn.Module):
    """P(E_T(text)), all layers in one pass."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        assert isinstance(embedder.text, TextEncoder)
        self.encoder = embedder.text
        self.projection = _exportable(embedder.text_projection, embedder.text.width, embedder.dim)
        network: Any = self.encoder.network
        network.set_attn_implementation("eager")

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        rows: Tensor = self.projection(self.encoder.encode(ids, mask.sum(1)))
        return rows


class _Image(nn.Module):
    """P(E_V(image)), early features included."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        assert embedder.vision is not None
        self.encoder, self.stages = embedder.vision, embedder.stages
        width = embedder.vision.width if self.stages is None else self.stages.width
        self.projection = _exportable(embedder.image_projection, width, embedder.dim)
        self.encoder.depth = "all"  # run all layers in one pass

    def forward(self, pixels: Tensor) -> Tensor:
        whole = self.encoder.with_early_features(pixels[:, None], torch.ones(0))
        seen = whole[:, : self.encoder.width] if self.stages is None else self.stages(whole)
        rows: Tensor = self.projection(seen)
        return rows


class _Vector(nn.Module):
    """x̂¹ = N(1ᵀ A_S(X̂⁰))."""

    def __init__(self, embedder: Embedder) -> None:
        super().__init__()
        self.self_attention = embedder.self_attention

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        after: Bag = self.self_attention(Bag(rows.masked_fill(~mask[..., None], 0.0), mask))
        return after.vector()


class _MaxPool(nn.Module):
    """`nn.AdaptiveMaxPool1d`, (n, H) → (n, D), in operations that ONNX has."""

    windows: Tensor

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        starts = torch.arange(dim) * width // dim
        ends = -(-(torch.arange(dim) + 1) * width // dim)
        longest = int((ends - starts).max())
        windows = torch.minimum(starts[:, None] + torch.arange(longest), ends[:, None] - 1)
        self.register_buffer("windows", windows)

    def forward(self, rows: Tensor) -> Tensor:
        return rows[:, self.windows].amax(dim=2)
