"""Triton search kernels for GPUs; `exact_gpu.py` has the same functions in plain PyTorch.

Entries are packed by `exact_gpu.pack`: f16, in tiles of 128, ordered so that the 32 scores of a group are in
the registers of one thread, and their maximum needs no exchange between threads.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, GROUP, CHUNK = 128, 32, 64  # entries per tile and per group, columns per product
# Maximum number of queries: (queries per program, warps, stages, programs per multiprocessor).
SHAPES = {16: (16, 4, 2, 4), 64: (64, 4, 3, 1), 512: (128, 8, 3, 1)}
Shape = tuple[int, int, int, int]


def group_maxima(queries: Tensor, packed: Tensor, shape: Shape | None = None) -> Tensor:
    """Return max ⟨q, v⟩ over each group of 32 entries (G, B), for queries (B, D'), entries (E', D')."""
    n, width = queries.shape
    tiles = len(packed) // TILE
    out = torch.empty(len(packed) // GROUP, n, device=queries.device)
    rows, warps, stages, programs_per_sm = shape or next(
        (SHAPES[size] for size in SHAPES if n <= size), SHAPES[512]
    )
    columns = triton.cdiv(n, rows)
    strips = min(tiles, max(1, _multiprocessors(queries.device) * programs_per_sm // columns))
    first = min(width, 2 * CHUNK)
    _maxima[(columns * strips,)](
        queries, packed, out, n, tiles,
        D=width, FIRST=first, SECOND=width - first, ROWS=rows, TILE=TILE, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    return out


def member_scores(queries: Tensor, vectors: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """Return ⟨q, v⟩ (B, W, 32), summed in f64, for members of groups (B, W).

    Within a group, only the best entry of each label keeps its score; the others are −inf.
    """
    n, n_groups = groups.shape
    out = torch.empty(n, n_groups, GROUP, device=queries.device)
    _scores_of_members[(n * n_groups,)](
        queries, vectors, labels, groups, out, len(vectors), n_groups,
        D=vectors.shape[1], GROUP=GROUP, CHUNK=CHUNK, num_warps=2,
    )  # fmt: skip
    return out


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@triton.jit
def _maxima(
    q, v, out, n, tiles,
    D: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Keep ROWS queries in each program and stride over the tiles, so that entries are read once."""
    columns = tl.cdiv(n, ROWS)
    row = (tl.program_id(0) % columns) * ROWS + tl.arange(0, ROWS)
    strip = (tl.program_id(0) // columns).to(tl.int64)  # 64-bit offsets: there may be 2³¹ numbers
    strips = tl.num_programs(0) // columns
    there = row < n
    mine, tile_rows, four = q + row[:, None] * D, tl.arange(0, TILE)[None, :] * D, tl.arange(0, 4)
    k1 = tl.arange(0, FIRST)
    q1 = tl.load(mine + k1[None, :], mask=there[:, None], other=0.0)
    if SECOND > 0:
        k2 = FIRST + tl.arange(0, SECOND)
        q2 = tl.load(mine + k2[None, :], mask=there[:, None], other=0.0)
    for tile in tl.range(strip, tiles, strips, num_stages=STAGES):
        at = v + tile * TILE * D + tile_rows
        scores = tl.dot(q1, tl.load(at + k1[:, None]))  # (ROWS, TILE)
        if SECOND > 0:
            scores = tl.dot(q2, tl.load(at + k2[:, None]), scores)
        best = tl.max(tl.max(tl.reshape(scores, (ROWS, TILE // 8, 4, 2)), 3), 1)  # (ROWS, 4)
        place = (tile * 4 + four)[None, :] * n + row[:, None]
        tl.store(out + place, best, mask=there[:, None])


@triton.jit
def _scores_of_members(
    q, v, label, group, out, entries, n_groups, D: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr
):
    """Score the members of one group for one query per program; keep only the best entry per label."""
    cell = tl.program_id(0).to(tl.int64)
    member = tl.arange(0, GROUP)
    row = tl.load(group + cell) * GROUP + member  # int64
    there = row < entries
    sums = tl.zeros((GROUP, CHUNK), tl.float64)
    for start in tl.static_range(0, D, CHUNK):
        k = start + tl.arange(0, CHUNK)
        one = tl.load(q + (cell // n_groups) * D + k, mask=k < D, other=0.0).to(tl.float64)
        some = tl.load(v + row[:, None] * D + k[None, :], mask=there[:, None] & (k < D)[None, :], other=0.0)
        sums += some.to(tl.float64) * one[None, :]
    score = tl.where(there, tl.sum(sums, 1).to(tl.float32), float("-inf"))
    owner = tl.load(label + row, mask=there, other=-1)
    better = (score[None, :] > score[:, None]) | (
        (score[None, :] == score[:, None]) & (member[None, :] < member[:, None])
    )
    beaten = tl.max((better & (owner[None, :] == owner[:, None])).to(tl.int32), 1)
    tl.store(out + cell * GROUP + member, tl.where(beaten > 0, float("-inf"), score))
