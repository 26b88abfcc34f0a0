"""BERT for prediction on a CPU, where a few short texts are mostly overhead.

No padding, no module call per step, one product for queries, keys and values, weights in oneDNN's layout. One
text of 4 to 8 words on one core, MiniLM-L6: 10.3 ms by transformers, 5.7 ms in f32 (equal to 1e-6), 3.5 ms in
bf16. It needs none of transformers' modelling code, which takes 3 s of CPU time to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.runtime.onednn import PackedLinear, can_pack

FEW = 128  # tokens up to which all texts are one sequence
STEP = 4  # tokens are filled up to a multiple: oneDNN prepares, and keeps, products for each number of them
USUAL = {"model_type": "bert", "hidden_act": "gelu", "is_decoder": False, "add_cross_attention": False}
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


def supports(config: Mapping[str, Any]) -> bool:
    """Whether `FastBert` computes the network of this config.json on this CPU."""
    absolute = config.get("position_embedding_type") in (None, "absolute")
    usual = absolute and all(config.get(name, False) == value for name, value in USUAL.items())
    whole = all(type(config.get(name)) is int and config[name] > 0 for name in SIZES)
    fits = whole and config["hidden_size"] % config["num_attention_heads"] == 0
    return usual and fits and isinstance(config.get("layer_norm_eps"), float) and can_pack()


class FastBert:
    """The mean of BERT's last hidden states, (n, H), for token ids (n, T) and lengths (n,)."""

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        """Lay out the weights of transformers' `BertModel`; `config` is that of config.json.

        Products are computed in `dtype`, all else in f32. Word embeddings are read where they lie.
        """
        self.heads: int = config["num_attention_heads"]
        self.words = weights["embeddings.word_embeddings.weight"].detach()
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        self.places = (weights["embeddings.position_embeddings.weight"] + kind).detach()
        eps: float = config["layer_norm_eps"]
        self.norm = _norm(weights, "embeddings.LayerNorm", eps)
        prefixes = [f"encoder.layer.{i}." for i in range(config["num_hidden_layers"])]
        self.layers = [_Layer(under(weights, prefix), dtype, eps) for prefix in prefixes]

    def __deepcopy__(self, memo: dict[int, Any]) -> FastBert:
        return self  # it never changes

    def __call__(self, ids: Tensor, lengths: Tensor) -> Tensor:
        n, longest = ids.shape
        x = self.norm(F.embedding(ids, self.words) + self.places[:longest])  # (n, T, H)
        if n == 1:  # the usual query
            return self._alone(x[0])[None]
        there = torch.arange(longest) < lengths[:, None]  # (n, T)
        x = x[there]  # (N, H)
        owner = torch.arange(n).repeat_interleave(lengths)  # (N,) of each token that is there
        owner = F.pad(owner, (0, -len(x) % (STEP if len(x) <= FEW else 4 * STEP)), value=n)  # of no text
        x = F.pad(x, (0, 0, 0, len(owner) - len(x)))
        if len(x) <= FEW:  # as one sequence, in which each text sees itself alone
            shape, place = (1, len(x)), None
            bias = torch.zeros(len(x), len(x)).masked_fill_(owner[:, None] != owner, -math.inf)
        else:
            shape, place = (n, longest), there.flatten().nonzero()[:, 0]
            bias = torch.zeros(n, 1, 1, longest).masked_fill_(~there[:, None, None], -math.inf)
        x = self._through(x, shape, place, bias)
        total = x.new_zeros(n + 1, x.shape[1]).index_add_(0, owner, x)
        mean: Tensor = total[:n] / lengths.clamp(min=1)[:, None]
        return mean

    def _alone(self, x: Tensor) -> Tensor:
        """The tokens of one text (T, H) → (H,)."""
        rows = len(x)
        x = F.pad(x, (0, 0, 0, -rows % STEP))
        bias = torch.zeros(1, len(x))
        bias[:, rows:] = -math.inf
        return self._through(x, (1, len(x)), None, bias)[:rows].mean(0)

    def _through(self, x: Tensor, shape: tuple[int, int], place: Tensor | None, bias: Tensor) -> Tensor:
        """All layers, (N, H) → (N, H)."""
        for layer in self.layers:
            mixed = _mixed(layer.three(x).float(), shape, self.heads, place, bias)
            x = layer.norm1(x + layer.out(mixed))
            x = layer.norm2(x + layer.down(layer.up(x)))
        return x


class _Layer:
    """The products and norms of one layer, without what a call of a module does besides."""

    def __init__(self, weights: dict[str, Tensor], dtype: torch.dtype, eps: float) -> None:
        def linear(*names: str, gelu: bool = False) -> Any:
            weight, bias = (_joined([weights[f"{n}.{k}"] for n in names]) for k in ("weight", "bias"))
            return PackedLinear(weight, bias, gelu, dtype).forward

        self.three = linear(*(f"attention.self.{name}" for name in ("query", "key", "value")))
        self.out = linear("attention.output.dense")
        self.up, self.down = linear("intermediate.dense", gelu=True), linear("output.dense")
        self.norm1 = _norm(weights, "attention.output.LayerNorm", eps)
        self.norm2 = _norm(weights, "output.LayerNorm", eps)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0].detach() if len(parts) == 1 else torch.cat([part.detach() for part in parts])


def _mixed(three: Tensor, shape: tuple[int, int], heads: int, place: Tensor | None, bias: Tensor) -> Tensor:
    """Self-attention: queries, keys and values (N, 3H) → (N, H), as sequences of this shape (n, T).

    Where there is padding, token i stands at place[i] of n · T; rows beyond those are of no text.
    """
    n, longest = shape
    rows = len(three)
    if place is not None:
        three = three.new_zeros(n * longest, three.shape[1]).index_copy_(0, place, three[: len(place)])
    q, k, v = three.view(n, longest, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)  # (n, h, T, d) each
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).reshape(n * longest, -1)
    return mixed if place is None else F.pad(mixed[place], (0, 0, 0, rows - len(place)))


def _norm(weights: Mapping[str, Tensor], name: str, eps: float) -> Any:
    weight, bias = (weights[f"{name}.{kind}"].detach() for kind in ("weight", "bias"))
    return lambda x: torch.layer_norm(x, weight.shape, weight, bias, eps)


def under(weights: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The weights whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and shape of each weight of `BertModel` without its pooler."""
    width, inner = config["hidden_size"], config["intermediate_size"]

    def both(name: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]

    tables = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}
    for kind, size in tables.items():
        yield f"embeddings.{kind}_embeddings.weight", (config[size], width)
    yield from both("embeddings.LayerNorm", width)
    for i in range(config["num_hidden_layers"]):
        prefix = f"encoder.layer.{i}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            yield from both(f"{prefix}attention.{name}", width, width)
        yield from both(f"{prefix}attention.output.LayerNorm", width)
        yield from both(f"{prefix}intermediate.dense", inner, width)
        yield from both(f"{prefix}output.dense", width, inner)
        yield from both(f"{prefix}output.LayerNorm", width)
