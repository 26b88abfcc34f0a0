"""The parts of a model folder, as they are written, and as they are checked before anything uses them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from mufin.bag import PackedBags
from mufin.config import Config
from mufin.data.formats.parquet import keeps_pictures
from mufin.data.items import Items
from mufin.data.pictures import StoredPictures
from mufin.data.write import read_bytes
from mufin.encode.embedder import Embedder
from mufin.encode.words import TITLES, WIDTH
from mufin.errors import CatalogueError, ModelError, UsageError
from mufin.folder import AGAIN
from mufin.labels import Labels
from mufin.rank.affinity import Affinity
from mufin.rank.ranker import Ranker
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.build import How, Index, build_index, on_cpu
from mufin.retrieve.entries import Entries
from mufin.retrieve.lists import Lists
from mufin.retrieve.memory import Memory
from mufin.tensors import FLOATS, Tensors, read_tensors, sparse_tensors, write_tensors

PICTURES = 64 << 20  # bytes of label pictures that are held in memory; more stay in their file
GROUP = 1024  # labels per row group: what is read for one picture
PER_LABEL = ("weights", "alpha", "centroids", "has_centroid", "frequency")

Files = dict[str, Path]


# -- the network ---------------------------------------------------------------------------------------------


def write_network(path: Path, embedder: Embedder, ranker: Ranker) -> None:
    """Encoders, projections, A_S and A_C."""
    modules = {"embedder": embedder, "ranker": ranker}
    named = (
        (f"{name}.{key}", t) for name, module in modules.items() for key, t in module.state_dict().items()
    )
    write_tensors(path, named)


def fill_network(embedder: Embedder, ranker: Ranker, path: Path) -> None:
    """The stored weights, into modules of the same layout."""
    tensors = read_tensors(path).all
    for prefix, module in (("embedder.", embedder), ("ranker.", ranker)):
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ModelError(f"{path} does not fit its settings ({reason})") from None


# -- labels --------------------------------------------------------------------------------------------------


def write_labels(labels: Labels, folder: Path) -> None:
    """What the model knows of its labels, and their texts and pictures."""
    write_tensors(folder / "labels.safetensors", _label_tensors(labels))
    # without Arrow's own copy of the schema, the bytes depend on the labels alone
    table = _label_table(labels.items)
    path = folder / "labels.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=False, row_group_size=GROUP)


def _label_tensors(labels: Labels) -> Iterator[tuple[str, Tensor]]:
    yield "bags", labels.bags.rows
    yield "offsets", labels.bags.offsets
    if labels.bags.whole is not None:
        yield "whole", labels.bags.whole
    for name in PER_LABEL:
        yield name, getattr(labels, name)
    yield from sparse_tensors(labels.bags.words)
    yield from sparse_tensors(labels.bags.titles, "titles")
    if labels.bags.meaning is not None:
        yield "meaning", labels.bags.meaning


def _label_table(items: Items) -> pa.Table:
    """Ids, texts and, where there are any, small pictures."""
    offsets, pictures = items.flat_images()
    if not len(pictures):
        return items.table
    # A label added from a file brings paths; the folder must not depend on files elsewhere.
    rows = [[read_bytes(p) for p in pictures[start:end]] for start, end in pairwise(offsets)]
    return items.table.append_column("images", pa.array(rows, pa.list_(pa.binary())))


def read_labels(files: Files, manifest: dict[str, Any], config: Config, width: int) -> Labels:
    """The labels; `width` is that of the text encoder."""
    items = _read_items(files["labels.parquet"])
    if len(items) != manifest["labels"]:
        raise ModelError(
            f"{files['labels.parquet']} has {len(items)} labels, expected {manifest['labels']}: {AGAIN}"
        )
    tensors = read_tensors(files["labels.safetensors"])
    n, dim = len(items), config.embed.dim
    rows = tensors.get_floats("bags", None, dim)
    bags = PackedBags(
        rows,
        tensors.get_offsets("offsets", n, len(rows)),
        tensors.get_sparse("words", (n, WIDTH)),
        tensors.get_sparse("titles", (n, TITLES)),
        tensors.get_floats("whole", n, dim) if config.embed.bag == "raw" else None,
        tensors.get_floats("meaning", n, width) if "meaning" in tensors else None,
    )
    return Labels(
        items, bags, tensors.get_floats("weights", n, dim), tensors.get_floats("alpha", n),
        tensors.get_floats("centroids", n, dim), tensors.get("has_centroid", (n,), (torch.bool,)),
        tensors.get("frequency", (n,), (*FLOATS, torch.int64)), torch.ones(n, dtype=torch.bool),
        manifest["own_items"],
    )  # fmt: skip


def _read_items(path: Path) -> Items:
    try:
        lazy = keeps_pictures(path, PICTURES)
        schema = pq.read_schema(path)
        if "images" in schema.names and schema.field("images").type.value_type != pa.binary():
            raise CatalogueError("images must be bytes: a path would publish a file of this machine")
        columns = [name for name in schema.names if name != "images" or not lazy]
        # one chunk: a chunk per row group would cost a millisecond whenever rows are taken
        table = pq.read_table(path, columns=columns).combine_chunks()
        table.validate(full=True)
        items = Items.from_table(table)
        return Items(items.table, StoredPictures(path)) if lazy else items
    except (pa.ArrowException, OSError, CatalogueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): {AGAIN}") from None


# -- the index and the memory --------------------------------------------------------------------------------


def write_index(index: Index, memory: Memory, how: How, folder: Path) -> None:
    """The entries and, also where a GPU does without, what a CPU searches them and the memory by."""
    entries, asked = index.entries, memory.sample()
    tensors = iter([("vectors", entries.vectors), ("labels", entries.labels)])
    write_tensors(folder / "index.safetensors", tensors)
    for name, built in (
        ("index", on_cpu(index, entries, how, asked)),
        ("memory", on_cpu(memory.built, memory.entries, "auto", asked)),
    ):
        if isinstance(built, ApproximateIndex):
            built.save(folder / f"{name}.faiss")


def read_index(files: Files, n_labels: int, config: Config, device: torch.device) -> Index:
    """The stored index, mapped."""
    tensors = read_tensors(files["index.safetensors"])
    vectors = tensors.get("vectors", (None, config.embed.dim), (torch.float32,))
    labels = tensors.get_rows("labels", n_labels, len(vectors))
    try:
        entries = Entries(vectors.to(device), labels.to(device), n_labels)
    except UsageError as error:
        raise tensors.wrong(str(error)) from None
    if "index.faiss" in files and device.type == "cpu":
        return ApproximateIndex.load(files["index.faiss"], entries)
    return build_index(entries, config.retrieve.search)


def write_memory(memory: Memory, path: Path) -> None:
    """The remembered points."""
    write_tensors(path, _memory_tensors(memory))


def _memory_tensors(memory: Memory) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, getattr(memory, name)) for name in ("keys", "offsets", "labels"))
    if memory.said is not None:
        yield "said.offsets", memory.said.offsets
        yield "said.labels", memory.said.labels
    yield from sparse_tensors(memory.words)
    if memory.words is not None:
        yield from sparse_tensors(memory.by_word, "by_word")  # for a quick first answer


def read_memory(files: Files, n_labels: int, dim: int, device: torch.device) -> Memory:
    """The remembered points, with the index over them where there is one."""
    tensors = read_tensors(files["memory.safetensors"])
    keys = tensors.get("keys", (None, dim), (torch.float32,))
    listed = _lists(tensors, "", len(keys), n_labels)
    said = _lists(tensors, "said.", len(keys), n_labels) if "said.labels" in tensors else None
    words = tensors.get_sparse("words", (len(keys), WIDTH))
    memory = Memory(keys, listed.offsets, listed.labels, words, said)
    if words is not None:
        memory = memory.with_postings(tensors.get_sparse("by_word", (WIDTH, len(keys))))
    memory = memory.to(device)
    if "memory.faiss" in files and device.type == "cpu":
        memory = memory.with_index(ApproximateIndex.load(files["memory.faiss"], memory.entries))
    return memory


def _lists(tensors: Tensors, prefix: str, points: int, n_labels: int) -> Lists:
    labels = tensors.get_rows(f"{prefix}labels", n_labels)
    return Lists(tensors.get_offsets(f"{prefix}offsets", points, len(labels)), labels)


# -- affinity ------------------------------------------------------------------------------------------------


def read_affinity(path: Path) -> Affinity:
    """What scores labels without training."""
    tensors = read_tensors(path)
    try:
        return Affinity.of(tensors.all)
    except (KeyError, UsageError) as error:
        raise tensors.wrong(f"does not hold an affinity ({error})") from None
