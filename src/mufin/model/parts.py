"""Write the parts of a model folder, and read them with validation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from mufin.config import Config
from mufin.data.formats.parquet import keeps_pictures, open_parquet
from mufin.data.images import read_bytes
from mufin.data.items import Items
from mufin.data.pictures import StoredPictures
from mufin.encode.bag import PackedBags
from mufin.encode.embedder import Embedder
from mufin.errors import CatalogueError, ModelError, UsageError
from mufin.files.folder import RECOVERY_HINT
from mufin.files.tensors import FLOATS, Tensors, read_tensors, write_tensors
from mufin.model.labels import Labels
from mufin.rank.ranker import Ranker
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.build import Index, build_index, on_cpu
from mufin.retrieve.entries import Entries
from mufin.retrieve.lists import Lists
from mufin.retrieve.milvus import MilvusIndex
from mufin.settings import Retrieve
from mufin.signals.base import Signal
from mufin.signals.compatibility import Compatibility

IMAGE_BYTES_IN_MEMORY = 64 << 20  # label images beyond this total size stay in their file
MAX_EXPANSION = 50  # bytes in memory per byte of labels.parquet
LABELS_PER_ROW_GROUP = 1024  # a row group is read for one image
LABEL_TENSORS = ("weights", "alpha", "centroids", "has_centroid", "frequency")

Files = dict[str, Path]


# -- the network ---------------------------------------------------------------------------------------------


def named_networks(embedder: Embedder, ranker: Ranker, signals: Sequence[Signal]) -> dict[str, nn.Module]:
    """Return all modules with weights by the names they are stored under."""
    of_signals = {
        f"signals.{signal.name}": signal.network for signal in signals if signal.network is not None
    }
    return {"embedder": embedder, "ranker": ranker, **of_signals}


def write_network(path: Path, modules: dict[str, nn.Module]) -> None:
    """Write the weights of encoders, projections, A_S, A_C and signals."""
    named = (
        (f"{name}.{key}", t) for name, module in modules.items() for key, t in module.state_dict().items()
    )
    write_tensors(path, named)


def read_network(path: Path, modules: dict[str, nn.Module], exact: bool) -> dict[str, Tensor]:
    """Load the stored weights into modules of the same layout; return the weights by name.

    They are memory-mapped, or copied if `exact`, since the last digits of results depend on memory alignment.
    """
    tensors = read_tensors(path).all
    if exact:
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ModelError(
                f"{path}: {name} has dtype {tensor.dtype}, expected torch.float32: {RECOVERY_HINT}"
            )
    for name, module in modules.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        try:
            module.load_state_dict(own, assign=True)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ModelError(f"{path} does not match the settings ({reason}): {RECOVERY_HINT}") from None
    return tensors


# -- labels --------------------------------------------------------------------------------------------------


def write_labels(labels: Labels, folder: Path) -> None:
    """Write the tensors, texts and images of labels."""
    write_tensors(folder / "labels.safetensors", _label_tensors(labels))
    # Without the Arrow schema, the bytes of the file depend on the labels alone.
    table = _label_table(labels.items)
    path = folder / "labels.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=False, row_group_size=LABELS_PER_ROW_GROUP)


def _label_tensors(labels: Labels) -> Iterator[tuple[str, Tensor]]:
    yield "bags", labels.bags.rows
    yield "offsets", labels.bags.offsets
    if labels.bags.whole is not None:
        yield "whole", labels.bags.whole
    for name in LABEL_TENSORS:
        yield name, getattr(labels, name)


def _label_table(items: Items) -> pa.Table:
    """Return ids, texts and, if there are any, thumbnails."""
    offsets, images = items.flat_images()
    if not len(images):
        return items.table
    # Labels added from a file may have paths, but the folder must not depend on other files.
    rows = [[read_bytes(image) for image in images[start:end]] for start, end in pairwise(offsets)]
    return items.table.append_column("images", pa.array(rows, pa.list_(pa.binary())))


def read_labels(files: Files, manifest: dict[str, Any], config: Config) -> Labels:
    """Read the labels of a model."""
    items = _read_items(files["labels.parquet"], manifest["labels"])
    tensors = read_tensors(files["labels.safetensors"])
    n, dim = len(items), config.embed.dim
    rows = tensors.get_floats("bags", None, dim)
    bags = PackedBags(
        rows,
        tensors.get_offsets("offsets", n, len(rows)),
        tensors.get_floats("whole", n, dim) if config.embed.bag == "raw" else None,
    )
    return Labels(
        items, bags, tensors.get_floats("weights", n, dim), tensors.get_floats("alpha", n),
        tensors.get_floats("centroids", n, dim), tensors.get("has_centroid", (n,), (torch.bool,)),
        tensors.get("frequency", (n,), (*FLOATS, torch.int64)), torch.ones(n, dtype=torch.bool),
        manifest["own_items"], float(manifest["untrained"]),
    )  # fmt: skip


def _read_items(path: Path, count: int) -> Items:
    try:
        lazy = keeps_pictures(path, IMAGE_BYTES_IN_MEMORY)
        file = open_parquet(path)
        schema, found = file.schema_arrow, file.metadata.num_rows
        if found != count:
            raise ModelError(f"{path} has {found} labels, expected {count}: {RECOVERY_HINT}")
        if "images" in schema.names and schema.field("images").type.value_type != pa.binary():
            raise CatalogueError("images must be bytes, since a path could expose a local file")
        columns = [name for name in schema.names if name != "images" or not lazy]
        # Combine chunks: with one per row group, each `take` would cost a millisecond.
        table = _read_within(file, columns, MAX_EXPANSION * path.stat().st_size + (1 << 28)).combine_chunks()
        table.validate(full=True)
        items = Items.from_table(table)
        return Items(items.table, StoredPictures(path)) if lazy else items
    except (pa.ArrowException, OSError, CatalogueError, AttributeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): {RECOVERY_HINT}") from None


def _read_within(file: pq.ParquetFile, columns: list[str], most: int) -> pa.Table:
    """Read columns of at most `most` bytes: a small file may expand to more than fits in memory."""
    batches, size = [], 0
    for batch in file.iter_batches(LABELS_PER_ROW_GROUP, columns=columns):
        size += batch.nbytes
        if size > most:
            raise CatalogueError(f"its labels take more than {most:,} bytes")
        batches.append(batch)
    return pa.Table.from_batches(batches) if batches else file.read(columns=columns)


# -- the index and the remembered points ---------------------------------------------------------------------


def write_index(index: Index, settings: Retrieve, like: Tensor | None, folder: Path) -> Index:
    """Write the entries and, if needed for search on a CPU, an approximate index; return the index.

    With Milvus, it is the index of a collection, which has all entries now.
    """
    if settings.search == "milvus":
        if isinstance(index, MilvusIndex):
            index = index.published()
        else:
            index = MilvusIndex.create(settings.uri or "", settings.collection, index.entries)
    entries = index.entries
    more = index.tensors() if isinstance(index, MilvusIndex) else ()
    write_tensors(
        folder / "index.safetensors", chain([("vectors", entries.vectors), ("labels", entries.labels)], more)
    )
    built = on_cpu(index, entries, settings.search, like)
    if isinstance(built, ApproximateIndex):
        built.save(folder / "index.faiss")
    return index


def sweep_index(index: Index) -> Index:
    """Remove from the collection of an index, if it has one, what a saved model has lost."""
    return index.swept() if isinstance(index, MilvusIndex) else index


def read_index(files: Files, n_labels: int, config: Config, device: torch.device) -> Index:
    """Read the index, memory-mapped; that of a collection makes sure that it can be searched."""
    if config.retrieve.search == "milvus":
        index = read_milvus_index(files["index.safetensors"], n_labels, config)
        index.collection.connected()
        return index
    entries = _read_entries(read_tensors(files["index.safetensors"]), n_labels, config).to(device)
    if "index.faiss" in files and device.type == "cpu":
        return ApproximateIndex.load(files["index.faiss"], entries)
    return build_index(entries, config.retrieve.search)


def read_milvus_index(path: Path, n_labels: int, config: Config) -> MilvusIndex:
    """Read the index of a collection, without a connection."""
    tensors = read_tensors(path)
    return MilvusIndex.read(tensors, _read_entries(tensors, n_labels, config), config.retrieve)


def _read_entries(tensors: Tensors, n_labels: int, config: Config) -> Entries:
    vectors = tensors.get("vectors", (None, config.embed.dim), (torch.float32,))
    labels = tensors.get_rows("labels", n_labels, len(vectors))
    try:
        return Entries(vectors, labels, n_labels)
    except UsageError as error:
        raise tensors.wrong(str(error)) from None


def write_points(points: Lists, path: Path) -> None:
    """Write the labels of the remembered training points."""
    write_tensors(path, points.tensors())


def read_points(path: Path, n_labels: int) -> Lists:
    """Read the labels of the remembered training points."""
    return Lists.read(read_tensors(path), "", None, n_labels)


# -- compatibility -------------------------------------------------------------------------------------------


def read_compatibility(path: Path) -> Compatibility:
    """Read the compatibility model, which scores untrained labels."""
    tensors = read_tensors(path)
    try:
        return Compatibility.of(tensors.all)
    except (KeyError, UsageError) as error:
        raise tensors.wrong(f"holds no valid compatibility model ({error})") from None
