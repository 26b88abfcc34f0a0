"""What faiss stores of the entries, a graph or lists of codes, and how a stored index is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mufin.errors import ModelError

Floats = NDArray[np.float32]

GRAPH = 20_000  # up to here HNSW over 8-bit vectors: too few to learn lists and codes from
BREADTH = (
    100  # efConstruction: with the 40 of faiss more is missed at the same effort, 200 builds half as fast
)
POINTS, ROUNDS = 40, 8  # of k-means: entries a list (faiss wants 39), and passes; more finds nothing more
ENERGY = 0.95  # of Σ v², kept by the directions that lists and codes know of
STEP = 16  # directions come in so many at a time


def build(vectors: Floats) -> Any:
    """The faiss index for inner products over unit vectors (E, D)."""
    faiss = load_faiss()
    n, width = vectors.shape
    if n <= GRAPH:
        graph = faiss.index_factory(width, "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = BREADTH
        if n:
            graph.train(vectors)
            graph.add(vectors)
        return graph
    lists = min(round(2 * n**0.5), n // POINTS)
    chosen = np.random.default_rng(0).choice(n, min(n, POINTS * lists), replace=False)
    some = vectors[np.sort(chosen)]
    turn = directions(some)
    kept = len(turn)
    codes = f"IVF{lists},PQ{kept // 2 if kept % 2 == 0 else kept}x4fs"
    inner = faiss.index_factory(kept, codes, faiss.METRIC_INNER_PRODUCT)
    inner.cp.niter, inner.cp.max_points_per_centroid = ROUNDS, POINTS
    linear = faiss.LinearTransform(width, kept, False)
    faiss.copy_array_to_vector(turn.ravel(), linear.A)
    linear.is_trained = True
    index = faiss.IndexPreTransform(linear, inner)
    index.train(some)
    index.add(vectors)
    return index


def directions(vectors: Floats) -> Floats:
    """(d, D): orthogonal directions that hold most of the length of vectors (n, D), great and small in turn.

    Inner products lose little, and codes of two numbers each get pairs of like variance.
    """
    moments = torch.from_numpy(vectors.T @ vectors).double()
    values, axes = torch.linalg.eigh(moments)  # ascending
    share = values.flip(0).clamp(min=0).cumsum(0) / values.clamp(min=0).sum()
    enough = int((share < ENERGY).sum()) + 1
    kept = min(-(-enough // STEP) * STEP, vectors.shape[1])
    basis: Tensor = axes.flip(1)[:, :kept].T  # (d, D), the greatest first
    turns = torch.stack([torch.arange(kept), torch.arange(kept).flip(0)], 1).flatten()[:kept]
    return np.ascontiguousarray(basis[turns].float().numpy())


def load_faiss() -> Any:
    """faiss, loaded when it is first needed."""
    import faiss

    return faiss


EFFORT = 1 << 16  # no search is set to look at more
EIGHT_BITS = 0  # faiss.ScalarQuantizer.QT_8bit
BLOCK = 32  # codes that faiss scores at once


def read_faiss(path: Path, shape: tuple[int, int]) -> Any:
    """The index in a file over vectors of this shape (E, D), as `codes.build` makes it.

    faiss follows the numbers of a file without a look: one that is out of range would end the process.
    """
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise ModelError(f"{path} is no faiss index that can be read: build the index again") from error
    if (index.ntotal, index.d) != shape:
        raise ModelError(
            f"{path} holds ({index.ntotal}, {index.d}) vectors, but the entries are {shape}: "
            "build the index again"
        )
    sound = isinstance(index, faiss.IndexHNSWSQ | faiss.IndexPreTransform) and index.metric_type == 0
    if sound and index.ntotal:
        sound = _is_graph(index) if isinstance(index, faiss.IndexHNSWSQ) else _is_lists(index, path)
    if not sound:
        raise ModelError(f"{path} is no index that mufin makes, or a damaged one: build the index again")
    return index


def _is_graph(index: Any) -> bool:
    """HNSW over 8-bit vectors: every link leads to a point that is on its level."""
    faiss, n = load_faiss(), index.ntotal
    storage, graph = faiss.downcast_index(index.storage), index.hnsw
    if not isinstance(storage, faiss.IndexScalarQuantizer) or not _is_scalar(storage, n, index.d):
        return False
    ends, offsets, levels, links = (
        faiss.vector_to_array(getattr(graph, name)).astype(np.int64)
        for name in ("cum_nneighbor_per_level", "offsets", "levels", "neighbors")
    )
    return (
        index.is_trained
        and _rises(ends)
        and (len(levels), len(offsets)) == (n, n + 1)
        and 1 <= levels.min() <= levels.max() < len(ends)
        and _rises(offsets)
        and offsets[-1] == len(links)
        and np.array_equal(np.diff(offsets), ends[levels])
        and 0 <= graph.entry_point < n
        and graph.max_level == levels[graph.entry_point] - 1 == levels.max() - 1
        and 1 <= graph.efSearch <= EFFORT
        and _links_lead_somewhere(links, offsets, levels, ends)
    )  # fmt: skip


def _links_lead_somewhere(
    links: NDArray[np.int64], offsets: NDArray[np.int64], levels: NDArray[np.int64], ends: NDArray[np.int64]
) -> bool:
    """Links (Σ,) are points, or −1 for none; those of a level lead to points that have this level."""
    if links.min(initial=-1) < -1 or links.max(initial=-1) >= len(levels):
        return False
    for level in range(1, int(levels.max())):
        starts = offsets[:-1][levels > level]
        own = links[(starts[:, None] + np.arange(ends[level], ends[level + 1])).ravel()]
        if (levels[own[own >= 0]] <= level).any():
            return False
    return True


def _is_scalar(storage: Any, n: int, width: int) -> bool:
    quantizer = storage.sq
    return (
        (storage.ntotal, storage.d, storage.code_size, storage.metric_type) == (n, width, width, 0)
        and (quantizer.qtype, quantizer.d, quantizer.code_size) == (EIGHT_BITS, width, width)
        and storage.codes.size() == n * width
        and quantizer.trained.size() == 2 * width
    )  # fmt: skip


def _is_lists(index: Any, path: Path) -> bool:
    """A turn of the vectors, then lists of 4-bit codes."""
    faiss = load_faiss()
    if index.chain.size() != 1:
        return False
    turn, inner = faiss.downcast_VectorTransform(index.chain.at(0)), faiss.downcast_index(index.index)
    return (
        type(turn) is faiss.LinearTransform
        and (turn.d_in, turn.d_out, turn.have_bias) == (index.d, inner.d, False)
        and turn.A.size() == turn.d_in * turn.d_out
        and index.is_trained and turn.is_trained and inner.is_trained
        and isinstance(inner, faiss.IndexIVFPQFastScan)
        and (inner.ntotal, inner.metric_type, inner.by_residual) == (index.ntotal, 0, False)
        and 1 <= inner.nprobe <= EFFORT
        and _is_coarse(faiss.downcast_index(inner.quantizer), inner)
        and _is_product(inner)
        and _are_lists(faiss.downcast_InvertedLists(inner.invlists), inner, path)
    )  # fmt: skip


def _is_coarse(quantizer: Any, inner: Any) -> bool:
    """The centre of each list."""
    return (
        isinstance(quantizer, load_faiss().IndexFlat)
        and (quantizer.ntotal, quantizer.d, quantizer.metric_type) == (inner.nlist, inner.d, 0)
        and quantizer.codes.size() == 4 * inner.nlist * inner.d
    )  # fmt: skip


def _is_product(inner: Any) -> bool:
    """Codes of 4 bits for each group of columns."""
    product = inner.pq
    return (
        (product.d, product.nbits, product.ksub, product.M * product.dsub) == (inner.d, 4, 16, inner.d)
        and (inner.M, inner.nbits, inner.ksub) == (product.M, 4, 16)
        and product.M > 0
        and product.code_size == inner.code_size == (product.M + 1) // 2
        and product.centroids.size() == 16 * inner.d
        and (inner.M2, inner.bbs) == (product.M + product.M % 2, BLOCK)
        and inner.direct_map.type == 0
    )  # fmt: skip


def _are_lists(lists: Any, inner: Any, path: Path) -> bool:
    """Every entry is in one list, and has its code there."""
    faiss, size = load_faiss(), BLOCK * inner.M2 // 2
    if not isinstance(lists, faiss.BlockInvertedLists):
        return False
    if (lists.nlist, lists.n_per_block, lists.block_size) != (inner.nlist, BLOCK, size):
        return False
    lengths = np.array([lists.list_size(number) for number in range(inner.nlist)], np.int64)
    seen = np.zeros(inner.ntotal, np.int64)
    for number in np.flatnonzero(lengths).tolist():
        ids = faiss.rev_swig_ptr(lists.get_ids(number), int(lengths[number]))
        if ids.min() < 0 or ids.max() >= len(seen):
            return False
        seen[ids] += 1
    return bool((seen == 1).all()) and _codes_are_there(path, lengths, -(-lengths // BLOCK) * size)


def _codes_are_there(path: Path, lengths: NDArray[np.int64], codes: NDArray[np.int64]) -> bool:
    """Whether the file ends with the lists: of each a length, the ids, a number of bytes, the codes.

    Python cannot ask faiss how many bytes of codes a list has.
    """
    data = np.memmap(path, np.uint8, "r")
    steps = 16 + 8 * lengths + codes
    starts = len(data) - int(steps.sum()) + np.cumsum(steps) - steps
    if starts[0] < 0:
        return False
    found = [data[place : place + 8].tobytes() for place in (*starts, *(starts + 8 + 8 * lengths))]
    return found == [int(number).to_bytes(8, "little") for number in (*lengths, *codes)]


def _rises(numbers: NDArray[np.int64]) -> bool:
    """From 0, never falling."""
    return len(numbers) > 0 and numbers[0] == 0 and bool((numbers[1:] >= numbers[:-1]).all())
