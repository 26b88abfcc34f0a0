"""Build faiss indexes, HNSW graphs or inverted lists of codes, and validate stored ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mufin.errors import ModelError

Floats = NDArray[np.float32]

GRAPH_MAX_ENTRIES = 20_000  # HNSW over 8-bit vectors up to here: too few to train lists and codes
EF_CONSTRUCTION = 100  # faiss' default of 40 has lower recall at the same effort; 200 builds half as fast
KMEANS_POINTS_PER_LIST, KMEANS_ITERATIONS = (
    40,
    8,
)  # faiss wants at least 39 points; more does not improve recall
ENERGY_KEPT = 0.95  # share of Σ v² that the projection for lists and codes keeps
DIMENSION_STEP = 16  # the projection has a multiple of this many dimensions


def build(vectors: Floats) -> Any:
    """Build the faiss inner-product index over unit vectors (E, D)."""
    faiss = load_faiss()
    n, width = vectors.shape
    if n <= GRAPH_MAX_ENTRIES:
        graph = faiss.index_factory(width, "HNSW32,SQ8", faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = EF_CONSTRUCTION
        if n:
            graph.train(vectors)
            graph.add(vectors)
        return graph
    n_lists = min(round(2 * n**0.5), n // KMEANS_POINTS_PER_LIST)
    chosen = np.random.default_rng(0).choice(n, min(n, KMEANS_POINTS_PER_LIST * n_lists), replace=False)
    training = vectors[np.sort(chosen)]
    projection = principal_directions(training)
    kept = len(projection)
    codes = f"IVF{n_lists},PQ{kept // 2 if kept % 2 == 0 else kept}x4fs"
    inner = faiss.index_factory(kept, codes, faiss.METRIC_INNER_PRODUCT)
    inner.cp.niter, inner.cp.max_points_per_centroid = KMEANS_ITERATIONS, KMEANS_POINTS_PER_LIST
    linear = faiss.LinearTransform(width, kept, False)
    faiss.copy_array_to_vector(projection.ravel(), linear.A)
    linear.is_trained = True
    index = faiss.IndexPreTransform(linear, inner)
    index.train(training)
    index.add(vectors)
    return index


def principal_directions(vectors: Floats) -> Floats:
    """Return the principal directions (d, D) of vectors (n, D), alternating large and small ones.

    Inner products lose little, and the pairs of dimensions that share a code have similar total variance.
    """
    moments = torch.from_numpy(vectors.T @ vectors).double()
    values, axes = torch.linalg.eigh(moments)  # ascending
    share = values.flip(0).clamp(min=0).cumsum(0) / values.clamp(min=0).sum()
    needed = int((share < ENERGY_KEPT).sum()) + 1
    kept = min(-(-needed // DIMENSION_STEP) * DIMENSION_STEP, vectors.shape[1])
    basis: Tensor = axes.flip(1)[:, :kept].T  # (d, D), largest first
    alternating = torch.stack([torch.arange(kept), torch.arange(kept).flip(0)], 1).flatten()[:kept]
    return np.ascontiguousarray(basis[alternating].float().numpy())


def load_faiss() -> Any:
    """Import faiss on first use."""
    import faiss

    return faiss


MAX_EFFORT = 1 << 16  # upper limit for efSearch and nprobe
QT_8BIT = 0  # faiss.ScalarQuantizer.QT_8bit
FASTSCAN_BLOCK = 32  # codes that faiss scores together


def read_faiss(path: Path, shape: tuple[int, int]) -> Any:
    """Load and validate the index that `build` made over vectors of this shape (E, D).

    faiss does not validate a file: a number out of range would crash the process.
    """
    faiss = load_faiss()
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise ModelError(f"{path} is not a readable faiss index: rebuild the index") from error
    if (index.ntotal, index.d) != shape:
        raise ModelError(
            f"{path} holds ({index.ntotal}, {index.d}) vectors, but the entries are {shape}: "
            "rebuild the index"
        )
    valid = isinstance(index, faiss.IndexHNSWSQ | faiss.IndexPreTransform) and index.metric_type == 0
    if valid and index.ntotal:
        valid = _is_valid_graph(index) if isinstance(index, faiss.IndexHNSWSQ) else _is_valid_ivf(index, path)
    if not valid:
        raise ModelError(f"{path} is damaged or was not written by mufin: rebuild the index")
    return index


def _is_valid_graph(index: Any) -> bool:
    """Check an HNSW graph over 8-bit vectors."""
    faiss, n = load_faiss(), index.ntotal
    storage, graph = faiss.downcast_index(index.storage), index.hnsw
    if not isinstance(storage, faiss.IndexScalarQuantizer) or not _is_valid_storage(storage, n, index.d):
        return False
    ends, offsets, levels, links = (
        faiss.vector_to_array(getattr(graph, name)).astype(np.int64)
        for name in ("cum_nneighbor_per_level", "offsets", "levels", "neighbors")
    )
    return (
        index.is_trained
        and _are_offsets(ends)
        and (len(levels), len(offsets)) == (n, n + 1)
        and 1 <= levels.min() <= levels.max() < len(ends)
        and _are_offsets(offsets)
        and offsets[-1] == len(links)
        and np.array_equal(np.diff(offsets), ends[levels])
        and 0 <= graph.entry_point < n
        and graph.max_level == levels[graph.entry_point] - 1 == levels.max() - 1
        and 1 <= graph.efSearch <= MAX_EFFORT
        and _links_are_valid(links, offsets, levels, ends)
    )  # fmt: skip


def _links_are_valid(
    links: NDArray[np.int64], offsets: NDArray[np.int64], levels: NDArray[np.int64], ends: NDArray[np.int64]
) -> bool:
    """Check that links (Σ,) are −1 or points, and that links of a level lead to points on that level."""
    if links.min(initial=-1) < -1 or links.max(initial=-1) >= len(levels):
        return False
    for level in range(1, int(levels.max())):
        starts = offsets[:-1][levels > level]
        targets = links[(starts[:, None] + np.arange(ends[level], ends[level + 1])).ravel()]
        if (levels[targets[targets >= 0]] <= level).any():
            return False
    return True


def _is_valid_storage(storage: Any, n: int, width: int) -> bool:
    quantizer = storage.sq
    return (
        (storage.ntotal, storage.d, storage.code_size, storage.metric_type) == (n, width, width, 0)
        and (quantizer.qtype, quantizer.d, quantizer.code_size) == (QT_8BIT, width, width)
        and storage.codes.size() == n * width
        and quantizer.trained.size() == 2 * width
    )  # fmt: skip


def _is_valid_ivf(index: Any, path: Path) -> bool:
    """Check a projection followed by inverted lists of 4-bit codes."""
    faiss = load_faiss()
    if index.chain.size() != 1:
        return False
    projection, inner = faiss.downcast_VectorTransform(index.chain.at(0)), faiss.downcast_index(index.index)
    return (
        type(projection) is faiss.LinearTransform
        and (projection.d_in, projection.d_out, projection.have_bias) == (index.d, inner.d, False)
        and projection.A.size() == projection.d_in * projection.d_out
        and index.is_trained and projection.is_trained and inner.is_trained
        and isinstance(inner, faiss.IndexIVFPQFastScan)
        and (inner.ntotal, inner.metric_type, inner.by_residual) == (index.ntotal, 0, False)
        and 1 <= inner.nprobe <= MAX_EFFORT
        and _is_valid_quantizer(faiss.downcast_index(inner.quantizer), inner)
        and _is_valid_pq(inner)
        and _are_valid_lists(faiss.downcast_InvertedLists(inner.invlists), inner, path)
    )  # fmt: skip


def _is_valid_quantizer(quantizer: Any, inner: Any) -> bool:
    """Check the centroids of the lists."""
    return (
        isinstance(quantizer, load_faiss().IndexFlat)
        and (quantizer.ntotal, quantizer.d, quantizer.metric_type) == (inner.nlist, inner.d, 0)
        and quantizer.codes.size() == 4 * inner.nlist * inner.d
    )  # fmt: skip


def _is_valid_pq(inner: Any) -> bool:
    """Check the product quantizer: one 4-bit code per group of columns."""
    product = inner.pq
    return (
        (product.d, product.nbits, product.ksub, product.M * product.dsub) == (inner.d, 4, 16, inner.d)
        and (inner.M, inner.nbits, inner.ksub) == (product.M, 4, 16)
        and product.M > 0
        and product.code_size == inner.code_size == (product.M + 1) // 2
        and product.centroids.size() == 16 * inner.d
        and (inner.M2, inner.bbs) == (product.M + product.M % 2, FASTSCAN_BLOCK)
        and inner.direct_map.type == 0
    )  # fmt: skip


def _are_valid_lists(lists: Any, inner: Any, path: Path) -> bool:
    """Check that every entry is in exactly one list, with its code."""
    faiss, size = load_faiss(), FASTSCAN_BLOCK * inner.M2 // 2
    if not isinstance(lists, faiss.BlockInvertedLists):
        return False
    if (lists.nlist, lists.n_per_block, lists.block_size) != (inner.nlist, FASTSCAN_BLOCK, size):
        return False
    lengths = np.array([lists.list_size(number) for number in range(inner.nlist)], np.int64)
    seen = np.zeros(inner.ntotal, np.int64)
    for number in np.flatnonzero(lengths).tolist():
        ids = faiss.rev_swig_ptr(lists.get_ids(number), int(lengths[number]))
        if ids.min() < 0 or ids.max() >= len(seen):
            return False
        seen[ids] += 1
    return bool((seen == 1).all()) and _codes_are_complete(
        path, lengths, -(-lengths // FASTSCAN_BLOCK) * size
    )


def _codes_are_complete(path: Path, lengths: NDArray[np.int64], codes: NDArray[np.int64]) -> bool:
    """Check that the file ends with the lists: for each its length, ids, number of code bytes and codes.

    The faiss Python API does not expose the number of bytes of codes in a list.
    """
    data = np.memmap(path, np.uint8, "r")
    steps = 16 + 8 * lengths + codes
    starts = len(data) - int(steps.sum()) + np.cumsum(steps) - steps
    if starts[0] < 0:
        return False
    found = [data[place : place + 8].tobytes() for place in (*starts, *(starts + 8 + 8 * lengths))]
    return found == [int(number).to_bytes(8, "little") for number in (*lengths, *codes)]


def _are_offsets(numbers: NDArray[np.int64]) -> bool:
    """Check that numbers start at 0 and never decrease."""
    return len(numbers) > 0 and numbers[0] == 0 and bool((numbers[1:] >= numbers[:-1]).all())
