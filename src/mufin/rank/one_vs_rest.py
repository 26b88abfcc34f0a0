"""Train sparse one-vs-rest classifiers: one logistic regression per label."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.data.ragged import spans
from mufin.encode.rows import SparseRows
from mufin.encode.rows import blocks as runs

COST = 10.0  # C: the weight of a pair's loss against ½ ‖w‖²
STEPS = 40  # of full-gradient Adagrad
RATE = 1.0
CELLS_PER_BLOCK = {"cpu": 1 << 22, "cuda": 1 << 26}  # of the pairs trained at a time
PLACES_PER_BLOCK = {"cpu": 1 << 25, "cuda": 1 << 30}  # of the table that finds a label's weight for a column
MIN_WEIGHT = 0.4  # smaller weights are dropped


@dataclass(frozen=True)
class Pairs:
    """P pairs of a point and a label, and whether the point has the label; ascending by label."""

    points: Tensor  # (P,)
    labels: Tensor  # (P,)
    relevant: Tensor  # (P,) bool

    @classmethod
    def of(cls, positive: Tensor, negative: Tensor, n_labels: int) -> Pairs:
        """Join pairs given as keys point · L + label; negative pairs that are also positive are dropped."""
        positive = positive.unique()
        every = torch.cat([positive, negative]).unique()
        labels, order = (every % n_labels).sort(stable=True)
        every = every[order]
        place = torch.searchsorted(positive, every).clamp(max=len(positive) - 1)
        return cls(every // n_labels, labels, positive[place] == every)

    def part(self, first: int, last: int) -> Pairs:
        return Pairs(*(each[first:last] for each in (self.points, self.labels, self.relevant)))


def one_vs_rest(points: SparseRows, pairs: Pairs, n_labels: int) -> tuple[SparseRows, Tensor]:
    """Return w (L, V) and b (L,): per label, the minimum of ½ (‖w‖² + b²) + C Σ log(1 + exp(∓(⟨w, x⟩ + b))).

    A weight belongs to a column of a positive point; all others are 0, as are small ones.
    """
    blocks = list(_blocks(points, pairs, n_labels))
    most = max(n for _, n in blocks)
    table = torch.zeros(most * points.width, dtype=torch.int32, device=pairs.labels.device)
    parts = [_trained(points, part, n, table) for part, n in blocks]
    weights, bias = zip(*parts, strict=True)
    columns, values = (torch.cat([getattr(x, name) for x in weights]) for name in ("columns", "values"))
    sizes = torch.cat([each.offsets.diff() for each in weights])
    offsets = F.pad(sizes.cumsum(0), (1, 0))
    return SparseRows(offsets, columns, values, points.width), torch.cat(bias)


def _blocks(points: SparseRows, pairs: Pairs, n_labels: int) -> Iterator[tuple[Pairs, int]]:
    """Yield the pairs of some labels at a time, numbered from 0, and how many labels these are."""
    kind = pairs.labels.device.type
    cells = points.extent(pairs.points)[1]
    every = torch.arange(n_labels + 1, device=cells.device)
    ends = torch.searchsorted(pairs.labels, every)
    total = F.pad(cells.cumsum(0), (1, 0))[ends].diff()
    place = CELLS_PER_BLOCK[kind] * points.width // PLACES_PER_BLOCK[kind]
    for first, last in runs((total + place).tolist(), CELLS_PER_BLOCK[kind]):
        part = pairs.part(int(ends[first]), int(ends[last]))
        yield replace(part, labels=part.labels - first), last - first


def _trained(points: SparseRows, pairs: Pairs, n_labels: int, table: Tensor) -> tuple[SparseRows, Tensor]:
    """Return w (n, V) and b (n,) of the labels 0, …, n − 1."""
    cells, keys = _cells(points, pairs, table)
    sign = pairs.relevant.float() * 2 - 1
    weight, bias = cells.values.new_zeros(len(keys)), cells.values.new_zeros(n_labels)
    seen_weight, seen_bias = torch.full_like(weight, 1e-8), torch.full_like(bias, 1e-8)
    for _ in range(STEPS):
        margin = sign * (_product(cells, weight) + bias[pairs.labels])
        slope = -COST * sign * torch.sigmoid(-margin)  # (P,)
        for value, seen, gradient in (
            (weight, seen_weight, _product(cells.T, slope)),
            (bias, seen_bias, torch.zeros_like(bias).index_add_(0, pairs.labels, slope)),
        ):
            gradient += value
            seen += gradient.square()
            value -= RATE * gradient / seen.sqrt()
    kept = weight.abs() >= MIN_WEIGHT
    keys, weight = keys[kept], weight[kept]
    starts = torch.arange(n_labels + 1, device=keys.device) * points.width
    columns = (keys % points.width).to(points.columns.dtype)
    return SparseRows(torch.searchsorted(keys, starts), columns, weight, points.width), bias


def _cells(points: SparseRows, pairs: Pairs, table: Tensor) -> tuple[SparseRows, Tensor]:
    """Return the cells of each pair by weight, (P, C), and the key label · V + column of each weight, (C,).

    `table` has a zero for each label and column, and is left so.
    """
    first, counts = points.extent(pairs.points)
    places = spans(first, counts)
    rows = torch.arange(len(counts), device=counts.device)
    pair = torch.repeat_interleave(rows, counts, output_size=len(places))
    keys = pairs.labels[pair] * points.width + points.columns[places]
    known = keys[pairs.relevant[pair]].unique()
    table[known] = torch.arange(1, len(known) + 1, dtype=torch.int32, device=keys.device)
    weight = table[keys] - 1
    table[known] = 0
    has = weight >= 0
    offsets = F.pad(has.cumsum(0), (1, 0))[F.pad(counts.cumsum(0), (1, 0))]
    return SparseRows(offsets, weight[has], points.values[places][has], len(known)), known


def _product(rows: SparseRows, vector: Tensor) -> Tensor:
    """Return rows (n, V) times a vector (V,)."""
    if not vector.is_cuda:  # SciPy is four times as fast as torch here
        return torch.from_numpy(rows.csr @ vector.numpy())
    with warnings.catch_warnings():  # torch calls its CSR tensors beta
        warnings.simplefilter("ignore", UserWarning)
        columns, shape = rows.columns.long(), (len(rows), rows.width)
        matrix = torch.sparse_csr_tensor(rows.offsets, columns, rows.values, shape)
    return matrix @ vector
