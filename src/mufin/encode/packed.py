"""Encoders laid out once for prediction on a processor, where a few short texts are mostly overhead.

A BERT network runs without padding, without a module a step, and with its weights in the layout of oneDNN;
the large products of other networks get that layout where they are. The numbers stay those of the network.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mufin.onednn import GELU, NOTHING, can_pack, pack, product

FEW = 128  # tokens up to which all texts are one sequence
ROWS = 64  # tokens of a usual batch, for which the layout is chosen; others work too
SMALL = 1 << 14  # weights; for fewer it makes no difference
STEP = 4  # tokens are filled up to a multiple: oneDNN prepares, and keeps, products for each number of them


class PackedLinear(nn.Module):
    """x Wᵀ + b, with W in the layout of oneDNN, and a GELU behind it on request."""

    def __init__(self, *linear: nn.Linear, gelu: bool = False, dtype: torch.dtype = torch.float32) -> None:
        """Several products of the same input become one; in bf16 sums are still f32, the result is not."""
        super().__init__()
        self.weight = pack(torch.cat([one.weight.detach() for one in linear]).to(dtype), ROWS)
        biases = [one._parameters["bias"] for one in linear]  # which may be missing
        self.bias = None
        if biases[0] is not None:
            self.bias = torch.cat([bias.detach() for bias in biases if bias is not None]).to(dtype)
        self.after, self.dtype = GELU if gelu else NOTHING, dtype

    def forward(self, x: Tensor) -> Tensor:
        return product(x.to(self.dtype), self.weight, self.bias, self.after)


class PackedBert:
    """The mean of a BERT network's last hidden states, (n, H), for token ids (n, T) and lengths (n,)."""

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        """Products are computed in `dtype`, everything else in f32."""
        net: Any = network
        self.heads: int = net.config.num_attention_heads
        self.words: Tensor = net.embeddings.word_embeddings.weight.detach()
        kind: Tensor = net.embeddings.token_type_embeddings.weight[0]
        self.places = (net.embeddings.position_embeddings.weight + kind).detach()
        self.norm = _norm(net.embeddings.LayerNorm)
        self.layers = [_Layer(layer, dtype) for layer in net.encoder.layer]

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedBert:
        return self  # it never changes

    @staticmethod
    def serves(network: nn.Module) -> bool:
        """Whether the network is one that this class computes, here."""
        if not can_pack() or next(network.parameters()).dtype != torch.float32:
            return False
        config: Any = network.config
        usual = (
            ("model_type", "bert"), ("hidden_act", "gelu"),
            ("is_decoder", False), ("add_cross_attention", False),
        )  # fmt: skip
        # newer forms of transformers have no other positions and leave the setting out
        absolute = getattr(config, "position_embedding_type", None) in (None, "absolute")
        return absolute and all(getattr(config, name, False) == value for name, value in usual)

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

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        first, attention = layer.attention.output, layer.attention.self
        self.three = PackedLinear(attention.query, attention.key, attention.value, dtype=dtype).forward
        self.out, self.norm1 = PackedLinear(first.dense, dtype=dtype).forward, _norm(first.LayerNorm)
        self.up = PackedLinear(layer.intermediate.dense, gelu=True, dtype=dtype).forward
        self.down = PackedLinear(layer.output.dense, dtype=dtype).forward
        self.norm2 = _norm(layer.output.LayerNorm)


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


def _norm(norm: nn.LayerNorm) -> Any:
    weight, bias, shape, eps = norm.weight.detach(), norm.bias.detach(), norm.normalized_shape, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


def pack_products(network: nn.Module) -> int:
    """Pack the large products of a network in place, which can then predict but not be saved; how many."""
    found = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child.weight.numel() >= SMALL and child.weight.dtype == torch.float32
    ]
    for parent, name, child in found if can_pack() else ():
        setattr(parent, name, PackedLinear(child))
    return len(found) if can_pack() else 0
