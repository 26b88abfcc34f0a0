"""The model folder: everything that prediction needs, nothing pickled, and a kill leaves it whole.

    mufin.json                 format, versions, the mixture of scores; of each part its file, size and hash
    config-<hash>.toml         the settings
    network-<hash>.safetensors encoders, projections, A_S, A_C
    labels-<hash>.safetensors  bags, w, α, centroids, hashed words: mapped, not read
    memory-<hash>.safetensors  the remembered training points, their hashed words and labels
    affinity-<hash>.safetensors what scores labels without training, if the settings ask for it
    index-<hash>.safetensors   the entries of the index: mapped, not read
    index-<hash>.faiss         the approximate index over them, where there are many
    memory-<hash>.faiss        the same over the remembered points
    labels-<hash>.parquet      ids, texts, small pictures
    layout-<hash>/             text/ and vision/: the encoders' layouts and the tokenizer

Files are named by their content, and `mufin.json` is replaced last: readers see the old model or the new one.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers.initialization import no_init_weights

from mufin.bag import PackedBags
from mufin.config import Config
from mufin.data.formats.parquet import keeps_pictures
from mufin.data.items import Items
from mufin.data.pictures import StoredPictures
from mufin.data.write import read_bytes
from mufin.encode.embedder import Embedder
from mufin.encode.words import TITLES, WIDTH
from mufin.errors import CatalogueError, ConfigError, ModelError, UsageError
from mufin.folder import MANIFEST, checked, foreign, install, read_manifest
from mufin.labels import Labels
from mufin.model import Mufin
from mufin.rank.affinity import Affinity
from mufin.rank.fusion import NAMES, Fusion
from mufin.rank.ranker import Ranker
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.build import Index, build_index, on_cpu
from mufin.retrieve.entries import Entries
from mufin.retrieve.lists import Lists
from mufin.retrieve.memory import Memory
from mufin.tensors import read_tensors, sparse_tensors, words_of, write_tensors

FORMAT = 2
PARTS = {
    "config.toml", "network.safetensors", "labels.safetensors", "labels.parquet", "index.safetensors",
    "memory.safetensors", "layout/text/config.json",
}  # fmt: skip
OLDER = (17, 20)  # how many parts mixtures had
PICTURES = 64 << 20  # bytes of label pictures that are held in memory; more stay in their file
GROUP = 1024  # labels a row group: what is read for one picture
PER_LABEL = ("weights", "alpha", "centroids", "has_centroid", "frequency")


def save(model: Mufin, folder: Path | str) -> None:
    """Write the model; parts that have not changed are left as they are."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.compact()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as name:
        staging = Path(name)
        (staging / "config.toml").write_text(model.config.to_toml(), "utf-8")
        write_tensors(staging / "network.safetensors", _network_tensors(model.embedder, model.ranker))
        _write_labels(model, staging)
        if model.affinity is not None:
            write_tensors(staging / "affinity.safetensors", model.affinity.tensors())
        model.embedder.save(staging / "layout")
        install(staging, folder, _facts(model))


def save_labels(model: Mufin, folder: Path | str) -> None:
    """Write the labels and the memory of a model whose network the folder holds already.

    What `save` does after labels came or went, without the megabytes that have not changed.
    """
    folder = Path(folder)
    parts = read_facts(folder)["parts"]
    same = {
        name: entry for name, entry in parts.items() if not name.startswith(("labels.", "index.", "memory."))
    }
    model.compact()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as name:
        staging = Path(name)
        _write_labels(model, staging)
        install(staging, folder, _facts(model), same)


def _write_labels(model: Mufin, staging: Path) -> None:
    write_tensors(staging / "labels.safetensors", _label_tensors(model.labels))
    # without Arrow's own copy of the schema, the bytes depend on the labels alone
    table = _label_table(model.labels.items)
    path = staging / "labels.parquet"
    pq.write_table(table, path, compression="zstd", store_schema=False, row_group_size=GROUP)
    _write_index(model, staging)
    write_tensors(staging / "memory.safetensors", _memory_tensors(model.memory))


def _facts(model: Mufin) -> dict[str, Any]:
    return {
        "mufin": FORMAT, "library": version("mufin"), "fusion": model.fusion.weights.tolist(),
        "calibration": model.fusion.calibration.tolist(), "own_items": model.labels.own_items,
        "labels": len(model.labels),
    }  # fmt: skip


def load(folder: Path | str, device: str = "auto") -> Mufin:
    """Read a model folder, large arrays mapped; a damaged or foreign one is a ModelError that says why."""
    folder = Path(folder)
    manifest = read_facts(folder)
    files = checked(folder, manifest)
    try:
        config = Config.read(files["config.toml"])
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from None
    where = pick_device(device)
    with no_init_weights():  # the stored ones are filled in
        embedder, ranker = Embedder(config, files["layout/text/config.json"].parents[1]), Ranker(config)
    _fill(embedder, ranker, read_tensors(files["network.safetensors"]), files["network.safetensors"])
    labels = _labels(read_tensors(files["labels.safetensors"]), files, manifest, config).to(where)
    index = _read_index(files, labels, config, where)
    memory = _memory(files["memory.safetensors"], len(labels.alive)).to(where)
    if "memory.faiss" in files and where.type == "cpu":
        memory = memory.with_index(ApproximateIndex.load(files["memory.faiss"], memory.entries))
    fusion = Fusion(torch.tensor(manifest["fusion"]), torch.tensor(manifest["calibration"]))
    affinity = _affinity(files["affinity.safetensors"]) if "affinity.safetensors" in files else None
    return Mufin(config, embedder.to(where), ranker.to(where), labels, fusion, memory, index, affinity)


def pick_device(name: str) -> torch.device:
    """`auto`: a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device {name!r} cannot be used here; try auto, cpu or cuda") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """The checked manifest: versions, the mixture of scores, and where each part is."""
    manifest = read_manifest(folder, FORMAT, PARTS)
    try:
        if len(manifest["fusion"]) in OLDER:  # of a model that did not know the last ones
            manifest["fusion"] += [0.0] * (len(NAMES) - len(manifest["fusion"]))
        if len(manifest["calibration"]) == 3:  # of a model whose probabilities did not heed the rank
            manifest["calibration"] += [0.0]
        for name, count in (("fusion", len(NAMES)), ("calibration", 4)):
            if len(manifest[name]) != count or not all(math.isfinite(value) for value in manifest[name]):
                raise ValueError(name)
        if not isinstance(manifest["own_items"], bool):
            raise ValueError("own_items")
    except (ValueError, KeyError, TypeError) as error:
        raise foreign(folder / MANIFEST, error) from None
    return manifest


# -- tensors -------------------------------------------------------------------------------------------------


def _network_tensors(embedder: Embedder, ranker: Ranker) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"embedder.{name}", tensor) for name, tensor in embedder.state_dict().items())
    yield from ((f"ranker.{name}", tensor) for name, tensor in ranker.state_dict().items())


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


def _memory_tensors(memory: Memory) -> Iterator[tuple[str, Tensor]]:
    yield from ((name, getattr(memory, name)) for name in ("keys", "offsets", "labels"))
    if memory.said is not None:
        yield "said.offsets", memory.said.offsets
        yield "said.labels", memory.said.labels
    yield from sparse_tensors(memory.words)
    if memory.words is not None:
        yield from sparse_tensors(memory.by_word, "by_word")  # for a quick first answer


def _fill(embedder: Embedder, ranker: Ranker, tensors: dict[str, Tensor], path: Path) -> None:
    for prefix, module in (("embedder.", embedder), ("ranker.", ranker)):
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ModelError(
                f"{path} does not fit its settings ({str(error).splitlines()[-1].strip()})"
            ) from None


def _write_index(model: Mufin, folder: Path) -> None:
    """The entries and, also where a GPU does without, what a CPU searches them and the memory by."""
    entries, keys = model.index.entries, model.memory.entries
    tensors = iter([("vectors", entries.vectors), ("labels", entries.labels)])
    write_tensors(folder / "index.safetensors", tensors)
    how, asked = model.config.retrieve.search, model.memory.sample()
    for name, index in (
        ("index", on_cpu(model.index, entries, how, asked)),
        ("memory", on_cpu(model.memory.built, keys, "auto", asked)),
    ):
        if isinstance(index, ApproximateIndex):
            index.save(folder / f"{name}.faiss")


def _read_index(files: dict[str, Path], labels: Labels, config: Config, device: torch.device) -> Index:
    """The stored index, mapped."""
    path = files["index.safetensors"]
    tensors = read_tensors(path)
    try:
        entries = Entries(tensors["vectors"].to(device), tensors["labels"].to(device), len(labels.alive))
    except (KeyError, UsageError) as error:
        raise ModelError(f"{path} does not fit the labels ({error}): copy the folder again") from None
    if "index.faiss" in files and device.type == "cpu":
        return ApproximateIndex.load(files["index.faiss"], entries)
    return build_index(entries, config.retrieve.search)


def _labels(
    tensors: dict[str, Tensor], files: dict[str, Path], manifest: dict[str, Any], config: Config
) -> Labels:
    table = files["labels.parquet"]
    try:
        lazy = keeps_pictures(table, PICTURES)
        columns = [name for name in pq.read_schema(table).names if name != "images" or not lazy]
        # one chunk: a row group a chunk would cost a millisecond whenever rows are taken
        items = Items.from_table(pq.read_table(table, columns=columns).combine_chunks())
        items = Items(items.table, StoredPictures(table)) if lazy else items
    except (pa.ArrowException, OSError, CatalogueError) as error:
        raise ModelError(f"{table} cannot be read ({error}): copy the folder again or train again") from None
    each = PER_LABEL if config.embed.bag == "attended" else (*PER_LABEL, "whole")
    missing = {"bags", "offsets", *each} - set(tensors)
    if missing:
        raise ModelError(f"{files['labels.safetensors']} has no {', '.join(sorted(missing))}: train again")
    path = files["labels.safetensors"]
    words = words_of(tensors, (len(items), WIDTH), path)
    titles = words_of(tensors, (len(items), TITLES), path, "titles")  # which older folders do not have
    rest = tensors.get("whole"), tensors.get("meaning")
    bags = PackedBags(tensors["bags"], tensors["offsets"], words, titles, *rest)
    if {len(items)} != {len(bags), *(len(tensors[name]) for name in each)}:
        raise ModelError(f"{table} has {len(items)} labels, the tensors {len(bags)}: copy the folder again")
    alive = torch.ones(len(items), dtype=torch.bool)
    known = {name: tensors[name] for name in PER_LABEL}
    return Labels(items, bags, alive=alive, own_items=manifest["own_items"], **known)


def _memory(path: Path, n_labels: int) -> Memory:
    tensors = read_tensors(path)
    try:
        words = words_of(tensors, (len(tensors["keys"]), WIDTH), path)
        said = None
        if "said.labels" in tensors:
            said = Lists(tensors["said.offsets"], tensors["said.labels"])
        memory = Memory(tensors["keys"], tensors["offsets"], tensors["labels"], words, said)
        # which folders of older versions do not have
        memory = memory.with_postings(words_of(tensors, (WIDTH, len(memory)), path, "by_word"))
    except KeyError as error:
        raise ModelError(f"{path} has no {error}: train again") from None
    named = memory.labels if memory.said is None else torch.cat([memory.labels, memory.said.labels])
    if len(named) and int(named.max()) >= n_labels:
        raise ModelError(f"{path} names labels beyond the {n_labels} of the model: copy the folder again")
    return memory


def _affinity(path: Path) -> Affinity:
    try:
        return Affinity.of(read_tensors(path))
    except KeyError as error:
        raise ModelError(f"{path} has no {error}: train again") from None


def _label_table(items: Items) -> pa.Table:
    """Ids, texts and, where there are any, small pictures."""
    offsets, pictures = items.flat_images()
    if not len(pictures):
        return items.table
    # A label added from a file brings paths; the folder must not depend on files elsewhere.
    rows = [[read_bytes(p) for p in pictures[start:end]] for start, end in pairwise(offsets)]
    return items.table.append_column("images", pa.array(rows, pa.list_(pa.binary())))
