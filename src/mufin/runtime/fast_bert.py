"""Fast BERT for prediction, where overhead dominates for a few short texts.

No module calls, one product for queries, keys and values, no import of transformers' modelling code (3 s).

On a CPU: hardly any padding, weights in oneDNN's layout. One text of 4 to 8 words on one core, MiniLM-L6:
10.3 ms with transformers, 5.7 ms in f32 (equal to 1e-6), 3.5 ms in bf16. A text gets the same numbers
whatever else is in its batch. On a GPU: padded, in bf16, recorded as CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.runtime.onednn import PackedLinear
from mufin.runtime.sdpa import unplanned_attention

# Token counts are padded to a multiple, since oneDNN prepares and keeps products per count.
TOKEN_MULTIPLE = 4  # of each text
MANY_TOKENS, MULTIPLE_OF_MANY = 128, 16  # of large batches
REQUIRED = {"model_type": "bert", "hidden_act": "gelu", "is_decoder": False, "add_cross_attention": False}
SIZE_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


def supports(config: Mapping[str, Any]) -> bool:
    """Return whether `FastBert` computes the network of this config.json; on a CPU, see also `can_pack`."""
    absolute = config.get("position_embedding_type") in (None, "absolute")
    usual = absolute and all(config.get(name, False) == value for name, value in REQUIRED.items())
    whole = all(type(config.get(name)) is int and config[name] > 0 for name in SIZE_FIELDS)
    fits = whole and config["hidden_size"] % config["num_attention_heads"] == 0
    return usual and fits and isinstance(config.get("layer_norm_eps"), float)


Product = Callable[[Tensor], Tensor]
MakeProduct = Callable[[Tensor, Tensor, bool], Product]  # from weight, bias and whether a GELU follows


class _Bert:
    """The weights of transformers' `BertModel`, with a product for each linear layer."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Tensor], make: MakeProduct) -> None:
        """`config` is the network's config.json. Word embeddings are not copied."""
        self.heads: int = config["num_attention_heads"]
        self.words = weights["embeddings.word_embeddings.weight"].detach()
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        self.positions = (weights["embeddings.position_embeddings.weight"] + kind).detach()
        eps: float = config["layer_norm_eps"]
        self.norm = _norm(weights, "embeddings.LayerNorm", eps)
        prefixes = [f"encoder.layer.{i}." for i in range(config["num_hidden_layers"])]
        self.layers = [_Layer(strip_prefix(weights, prefix), make, eps) for prefix in prefixes]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # immutable


class PaddedBert(_Bert):
    """The mean of BERT's last hidden states on a GPU, (n, H) f32, for ids (n, T) and lengths (n,)."""

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor], device: torch.device | str
    ) -> None:
        """Round the weights to bf16."""
        moved = {name: weight.detach().to(device, torch.bfloat16) for name, weight in weights.items()}
        super().__init__(config, moved, _linear)

    def __call__(self, ids: Tensor, lengths: Tensor) -> Tensor:
        n, longest = ids.shape
        present = torch.arange(longest, device=ids.device) < lengths[:, None]  # (n, T)
        x = self.norm(F.embedding(ids, self.words) + self.positions[:longest])  # (n, T, H)
        for layer in self.layers:
            q, k, v = layer.qkv(x).view(n, longest, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            with unplanned_attention(ids.device):
                found = F.scaled_dot_product_attention(q, k, v, attn_mask=present[:, None, None])
            x = layer.norm1(x + layer.out(found.transpose(1, 2).reshape(x.shape)))
            x = layer.norm2(x + layer.down(layer.up(x)))
        total: Tensor = x.float().masked_fill(~present[..., None], 0.0).sum(1)
        return total / lengths.clamp(min=1)[:, None]


def _linear(weight: Tensor, bias: Tensor, gelu: bool) -> Product:
    if gelu:
        return lambda x: F.gelu(F.linear(x, weight, bias))
    return lambda x: F.linear(x, weight, bias)


class FastBert(_Bert):
    """The mean of BERT's last hidden states on a CPU, (n, H), for token ids (n, T) and lengths (n,)."""

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> None:
        """Pack the weights; products are computed in `dtype`, all else in f32."""
        super().__init__(config, weights, partial(_packed, dtype))

    def __call__(self, ids: Tensor, lengths: Tensor) -> Tensor:
        longest = ids.shape[1]
        x = self.norm(F.embedding(ids, self.words) + self.positions[:longest])  # (n, T, H)
        attention = _Attention(self.heads, lengths)
        x = F.pad(x, (0, 0, 0, int(attention.sizes.max()) - longest))
        x = x[torch.arange(x.shape[1]) < attention.sizes[:, None]]  # (N, H)
        if len(x) > MANY_TOKENS:
            x = F.pad(x, (0, 0, 0, -len(x) % MULTIPLE_OF_MANY))
        for layer in self.layers:
            x = layer.norm1(x + layer.out(attention(layer.qkv(x).float())))
            x = layer.norm2(x + layer.down(layer.up(x)))
        return attention.means(x)


def _packed(dtype: torch.dtype, weight: Tensor, bias: Tensor, gelu: bool) -> Product:
    return PackedLinear(weight, bias, gelu, dtype).forward


class _Layer:
    """The products and norms of one layer, without the overhead of module calls."""

    def __init__(self, weights: dict[str, Tensor], make: MakeProduct, eps: float) -> None:
        def linear(*names: str, gelu: bool = False) -> Product:
            weight, bias = (_concatenate([weights[f"{n}.{k}"] for n in names]) for k in ("weight", "bias"))
            return make(weight, bias, gelu)

        self.qkv = linear(*(f"attention.self.{name}" for name in ("query", "key", "value")))
        self.out = linear("attention.output.dense")
        self.up, self.down = linear("intermediate.dense", gelu=True), linear("output.dense")
        self.norm1 = _norm(weights, "attention.output.LayerNorm", eps)
        self.norm2 = _norm(weights, "output.LayerNorm", eps)


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0].detach() if len(parts) == 1 else torch.cat([part.detach() for part in parts])


class _Attention:
    """Self-attention within each of n texts, whose rows lie end to end.

    Texts of equal row counts are grouped, and each text is padded to the same length whatever else is in the
    batch: in bf16, summing in another order would change results visibly.
    """

    def __init__(self, heads: int, lengths: Tensor) -> None:
        self.heads, self.lengths = heads, lengths
        self.sizes = (lengths + TOKEN_MULTIPLE - 1) // TOKEN_MULTIPLE * TOKEN_MULTIPLE  # (n,) rows per text
        sizes, counts = self.sizes.unique_consecutive(return_counts=True)
        self.groups: list[tuple[int, int, Tensor]] = []  # texts, rows per text, bias
        for size, some in zip(sizes.tolist(), lengths.split(counts.tolist()), strict=True):
            padding = torch.arange(size) >= some[:, None]
            bias = torch.zeros(len(some), 1, 1, size).masked_fill_(padding[:, None, None], -math.inf)
            self.groups.append((len(some), size, bias))

    def __call__(self, qkv: Tensor) -> Tensor:
        """Attend: queries, keys and values (N, 3H) → (N, H); extra rows belong to no text."""
        attended = qkv.new_zeros(len(qkv), qkv.shape[1] // 3)
        first = 0
        for n, size, bias in self.groups:
            rows = slice(first, first + n * size)
            q, k, v = (
                qkv[rows].view(n, size, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            )  # (n, h, T, d)
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            attended[rows] = found.transpose(1, 2).reshape(n * size, -1)
            first = rows.stop
        return attended

    def means(self, x: Tensor) -> Tensor:
        """Average the tokens of each text, (N, H) → (n, H)."""
        parts, first = [], 0
        for n, size, bias in self.groups:
            rows = x[first : first + n * size].view(n, size, -1)
            parts.append(rows.masked_fill(bias[:, 0, 0, :, None] < 0, 0.0).sum(1))
            first += n * size
        return torch.cat(parts) / self.lengths.clamp(min=1)[:, None]


def _norm(weights: Mapping[str, Tensor], name: str, eps: float) -> Any:
    weight, bias = (weights[f"{name}.{kind}"].detach() for kind in ("weight", "bias"))
    return lambda x: torch.layer_norm(x, weight.shape, weight, bias, eps)


def strip_prefix(weights: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the weights whose names begin with a prefix, with the prefix removed."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def weight_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of each weight of `BertModel` without its pooler."""
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
