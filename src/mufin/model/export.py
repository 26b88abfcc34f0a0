"""Export a model for programs without mufin: index entries as files or in Milvus, encoders as ONNX graphs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from mufin.data.ragged import CPU
from mufin.encode import onnx
from mufin.encode.text import MAX_CHARACTERS, TextEncoder
from mufin.errors import UsageError
from mufin.files.folder import check_part, temporary_path
from mufin.model.info import read_config
from mufin.model.manifest import read_model_manifest
from mufin.model.mufin import Mufin
from mufin.model.parts import read_milvus_index
from mufin.model.store import save
from mufin.retrieve.collection import Collection
from mufin.retrieve.entries import Entries
from mufin.retrieve.exact import ExactIndex
from mufin.retrieve.milvus import MilvusIndex
from mufin.version import VERSION

Form = Literal["onnx", "npy", "parquet"]
FORMAT = 1  # version of the folder


def export(model: Mufin, folder: Path, to: Form) -> dict[str, int]:
    """Write a new folder, which appears once it is complete; return the bytes of each file.

    npy      entries.npy (E, D), owners.npy (E,): row numbers in labels.jsonl with `id` and `text`
    parquet  entries.parquet with `label`, `text`, `vector`
    onnx     the graphs of `mufin.encode.onnx`, tokenizer.json, export.json (preprocessing), and all of npy
    """
    _refuse_existing(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = temporary_path(folder)
    staged.mkdir()
    writers: dict[Form, Callable[[Mufin, Path], None]]
    writers = {"onnx": _write_onnx, "npy": _write_npy, "parquet": _write_parquet}
    try:
        writers[to](model, staged)
        if folder.exists():
            folder.rmdir()
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def fill_collection(model: Mufin, uri: str, name: str) -> Collection:
    """Fill a new Milvus collection with the index entries, and with `id` and `text` of their labels."""
    vectors, owners, labels = entries(model)
    of_labels = Entries(torch.from_numpy(vectors), torch.from_numpy(owners), len(labels))
    collection = Collection(uri, name, "")
    fields = {"id": [id for id, _ in labels], "text": [text for _, text in labels]}
    collection.fill(of_labels, np.arange(len(labels)), fields)
    return collection


def move_to_milvus(model: Mufin, folder: Path, uri: str, prefix: str) -> Collection:
    """Write the model to a new folder that searches in a Milvus collection; fill that, and return it."""
    _refuse_existing(folder)
    moved = copy(model)
    moved.index = ExactIndex(model.index.entries.to(CPU))  # not a collection, but to become one
    moved.config = model.config.override(
        ["retrieve.search=milvus", f"retrieve.uri={uri}", f"retrieve.collection={prefix}"]
    )
    save(moved, folder)
    return cast(MilvusIndex, moved.index).collection


def refill(folder: Path) -> Collection:
    """Create the collection that the model of a folder searches in; it may have been lost."""
    manifest = read_model_manifest(folder)
    config = read_config(check_part(folder, manifest["parts"]["config.toml"]))
    if config.retrieve.search != "milvus":
        raise UsageError(f"{folder} does not search in Milvus; choose where to write with --uri")
    path = check_part(folder, manifest["parts"]["index.safetensors"])
    index = read_milvus_index(path, manifest["labels"], config)
    index.collection.fill(index.entries, index.numbers)
    return index.collection


def entries(model: Mufin) -> tuple[np.ndarray, np.ndarray, list[tuple[str, str]]]:
    """Return the index entries (E, D), their owners (E,), and id and first text of each living label."""
    alive = model.labels.alive
    kept = model.index.entries.only(alive)
    rows = alive.nonzero()[:, 0].cpu().numpy()
    owners = np.searchsorted(rows, kept.labels.cpu().numpy())
    names = model.labels.names(rows)
    return kept.vectors.cpu().numpy(), owners.astype(np.int64), [names[row] for row in rows.tolist()]


def _refuse_existing(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists already; choose a new folder, or remove it first")


def _write_npy(model: Mufin, folder: Path) -> None:
    vectors, owners, labels = entries(model)
    np.save(folder / "entries.npy", vectors)
    np.save(folder / "owners.npy", owners)
    lines = (json.dumps({"id": id, "text": text}, ensure_ascii=False) + "\n" for id, text in labels)
    with (folder / "labels.jsonl").open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def _write_parquet(model: Mufin, folder: Path) -> None:
    vectors, owners, labels = entries(model)
    named = pa.table({"label": [id for id, _ in labels], "text": [text for _, text in labels]})
    named = named.cast(pa.schema({"label": pa.string(), "text": pa.string()}))
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    pq.write_table(named.take(pa.array(owners)).append_column("vector", flat), folder / "entries.parquet")


def _write_onnx(model: Mufin, folder: Path) -> None:
    text = model.embedder.text
    backend = getattr(getattr(text, "tokenizer", None), "backend_tokenizer", None)
    if not isinstance(text, TextEncoder) or not model.exact:
        raise UsageError("only encoders as trained can be exported; write load(folder, exact=True)")
    if backend is None:
        raise UsageError("the tokenizer of this model has no tokenizer.json, so it cannot be exported")
    onnx.export(model.embedder, folder)
    rules = type(backend).from_str(backend.to_str())
    rules.no_padding()
    rules.enable_truncation(text.max_length, direction=text.tokenizer.truncation_side)
    rules.save(str(folder / "tokenizer.json"))
    vision = model.embedder.vision
    facts: dict[str, Any] = {
        "format": FORMAT,
        "mufin": VERSION,
        "dim": model.config.embed.dim,
        "reads": model.config.modalities,
        "text": {"max_characters": MAX_CHARACTERS},
        "image": None if vision is None else {"size": vision.size},
    }
    (folder / "export.json").write_text(json.dumps(facts, indent=1), "utf-8")
    _write_npy(model, folder)
