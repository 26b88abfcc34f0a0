"""The search kernels for GPUs, in Triton; `scan.py` has the same functions in plain torch.

Entries come packed (`scan.pack`): bf16, in tiles of 128, and within a tile in an order that leaves the 32
scores of a group in the registers of one thread, so that their maximum costs no exchange between threads.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, GROUP, CHUNK = 128, 32, 64  # entries of a tile and of a group, columns of a product
# Up to so many queries: how many a program holds, its warps, its stages, the programs a processor has.
SHAPES = {16: (16, 4, 2, 4), 64: (64, 4, 3, 1), 512: (128, 8, 3, 1)}
Shape = tuple[int, int, int, int]


def group_maxima(queries: Tensor, packed: Tensor, shape: Shape | None = None) -> Tensor:
    """max ⟨q, v⟩ over each group of 32 entries, (G, B), for queries (B, D') and packed entries (E', D')."""
    n, width = queries.shape
    tiles = len(packed) // TILE
    out = torch.empty(len(packed) // GROUP, n, device=queries.device)
    rows, warps, stages, each = shape or next((SHAPES[size] for size in SHAPES if n <= size), SHAPES[512])
    columns = triton.cdiv(n, rows)
    strips = min(tiles, max(1, _processors(queries.device) * each // columns))
    first = min(width, 2 * CHUNK)
    _maxima[(columns * strips,)](
        queries, packed, out, n, tiles,
        D=width, FIRST=first, SECOND=width - first, ROWS=rows, TILE=TILE, STAGES=stages, num_warps=warps,
    )  # fmt: skip
    return out


def member_scores(queries: Tensor, vectors: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """⟨q, v⟩ (B, W, 32) in f64 for members of groups (B, W); −inf but for the best of each label."""
    n, wide = groups.shape
    out = torch.empty(n, wide, GROUP, device=queries.device)
    _scores_of_members[(n * wide,)](
        queries, vectors, labels, groups, out, len(vectors), wide,
        D=vectors.shape[1], GROUP=GROUP, CHUNK=CHUNK, num_warps=2,
    )  # fmt: skip
    return out


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@triton.jit
def _maxima(
    q, v, out, n, tiles,
    D: tl.constexpr, FIRST: tl.constexpr, SECOND: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """ROWS queries stay with a program, which goes through every S-th tile: entries are read once."""
    columns = tl.cdiv(n, ROWS)
    row = (tl.program_id(0) % columns) * ROWS + tl.arange(0, ROWS)
    strip = (tl.program_id(0) // columns).to(tl.int64)  # so are all offsets: there may be 2³¹ numbers
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
    q, v, label, group, out, entries, wide, D: tl.constexpr, GROUP: tl.constexpr, CHUNK: tl.constexpr
):
    """One program a query and group: its members' scores, of several entries of a label only the best."""
    cell = tl.program_id(0).to(tl.int64)
    member = tl.arange(0, GROUP)
    row = tl.load(group + cell) * GROUP + member  # int64
    there = row < entries
    sums = tl.zeros((GROUP, CHUNK), tl.float64)
    for start in tl.static_range(0, D, CHUNK):
        k = start + tl.arange(0, CHUNK)
        one = tl.load(q + (cell // wide) * D + k, mask=k < D, other=0.0).to(tl.float64)
        some = tl.load(v + row[:, None] * D + k[None, :], mask=there[:, None] & (k < D)[None, :], other=0.0)
        sums += some.to(tl.float64) * one[None, :]
    score = tl.where(there, tl.sum(sums, 1).to(tl.float32), float("-inf"))
    owner = tl.load(label + row, mask=there, other=-1)
    better = (score[None, :] > score[:, None]) | (
        (score[None, :] == score[:, None]) & (member[None, :] < member[:, None])
    )
    beaten = tl.max((better & (owner[None, :] == owner[:, None])).to(tl.int32), 1)
    tl.store(out + cell * GROUP + member, tl.where(beaten > 0, float("-inf"), score))
