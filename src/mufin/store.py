"""The model folder: everything that prediction needs, nothing pickled, and a kill leaves it whole.

    mufin.json                 format, versions, β, and for each part below its file, size and hash
    config-<hash>.toml         the settings
    network-<hash>.safetensors encoders, projections, A_S, A_C
    labels-<hash>.safetensors  bags, w, α, centroids: mapped, not read
    labels-<hash>.parquet      ids, texts, small pictures
    text/ vision/              the encoders' layouts and the tokenizer

Files are named by their content, and `mufin.json` is replaced last: readers see the old model or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mufin.bag import PackedBags
from mufin.config import Config
from mufin.data.items import Items
from mufin.data.write import read_bytes
from mufin.encode.embedder import Embedder
from mufin.errors import ConfigError, ModelError
from mufin.labels import Labels
from mufin.model import Mufin
from mufin.rank.ranker import Ranker

FORMAT = 1
MANIFEST = "mufin.json"
BIG = 64 << 20  # bytes; larger files are checked by samples at load, so that they are mapped and not read
SAMPLE = 1 << 16


def save(model: Mufin, folder: Path | str) -> None:
    """Write the model; parts that have not changed are left as they are."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    labels = model.labels.compact()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".saving-") as name:
        staging = Path(name)
        (staging / "config.toml").write_text(model.config.to_toml(), "utf-8")
        _write_tensors(staging / "network.safetensors", _network_tensors(model.embedder, model.ranker))
        _write_tensors(staging / "labels.safetensors", _label_tensors(labels))
        pq.write_table(_label_table(labels.items), staging / "labels.parquet", compression="zstd")
        model.embedder.save(staging)
        parts = {
            str(path.relative_to(staging)): path for path in sorted(staging.rglob("*")) if path.is_file()
        }
        entries = {part: _install(path, part, folder) for part, path in parts.items()}
    manifest = {
        "mufin": FORMAT, "library": _version(), "beta": model.beta, "own_items": labels.own_items,
        "labels": len(labels), "parts": entries,
    }  # fmt: skip
    _replace(folder / MANIFEST, json.dumps(manifest, indent=1))
    _sweep(folder, {entry["file"] for entry in entries.values()})


def load(folder: Path | str, device: str = "auto") -> Mufin:
    """Read a model folder, large arrays mapped; a damaged or foreign one is a ModelError that says why."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    files = {part: _checked(folder, entry) for part, entry in manifest["parts"].items()}
    try:
        config = Config.read(files["config.toml"])
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from None
    where = pick_device(device)
    layouts = _layouts(files, folder)
    embedder, ranker = Embedder(config, layouts), Ranker(config)
    _fill(embedder, ranker, _read_tensors(files["network.safetensors"]), files["network.safetensors"])
    labels = _labels(_read_tensors(files["labels.safetensors"]), files["labels.parquet"], manifest)
    return Mufin(config, embedder.to(where), ranker.to(where), labels.to(where), float(manifest["beta"]))


def pick_device(name: str) -> torch.device:
    """`auto`: a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device {name!r} cannot be used here; try auto, cpu or cuda") from None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The checked manifest of a model folder."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "is not a model folder (no mufin.json in it)" if folder.is_dir() else "does not exist"
        raise ModelError(f"{folder} {what}; train one with: mufin train CATALOGUE -o {folder}")
    try:
        manifest = json.loads(path.read_text("utf-8"))
        version = manifest["mufin"]
        if not isinstance(version, int) or version > FORMAT:
            raise ModelError(f"{path}: format {version!r}, this mufin reads up to {FORMAT}; update mufin")
        missing = {"config.toml", "network.safetensors", "labels.safetensors", "labels.parquet"} - set(
            manifest["parts"]
        )
        if missing:
            raise ModelError(
                f"{path}: does not list {', '.join(sorted(missing))}; the folder is damaged, train again"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(
            f"{path}: not a manifest of mufin ({type(error).__name__}: {error}); train again"
        ) from None
    checked: dict[str, Any] = manifest
    return checked


# -- parts as files ------------------------------------------------------------------------------------------


def _install(path: Path, part: str, folder: Path) -> dict[str, Any]:
    """Move a staged part into the folder under a name that says its content."""
    digest, size = file_hash(path), path.stat().st_size
    stem, dot, suffix = part.partition(".")
    # Layout files keep their names: the libraries that read them look for those.
    target = f"{stem}-{digest[:10]}{dot}{suffix}" if "/" not in part else f"{stem}{dot}{suffix}"
    (folder / target).parent.mkdir(exist_ok=True)
    if not (folder / target).exists() or file_hash(folder / target) != digest:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(folder / target)
    return {"file": target, "size": size, "hash": digest}


def file_hash(path: Path) -> str:
    """blake2b of a file; of a large one, of its size, both ends and 64 samples between."""
    digest = hashlib.blake2b(digest_size=16)
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= BIG:
            while block := file.read(1 << 20):
                digest.update(block)
        else:
            digest.update(str(size).encode())
            for sample in range(66):
                file.seek((size - SAMPLE) * sample // 65)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def _checked(folder: Path, entry: dict[str, Any]) -> Path:
    path = folder / str(entry["file"])
    if not path.is_file():
        raise ModelError(f"{path} is missing; the model is damaged: copy the folder again or train again")
    size = path.stat().st_size
    if size != entry["size"]:
        raise ModelError(
            f"{path} has {size} bytes, expected {entry['size']}: copy the folder again or train again"
        )
    if file_hash(path) != entry["hash"]:
        raise ModelError(
            f"{path} is not what was saved (its hash differs): copy the folder again or train again"
        )
    return path


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sweep(folder: Path, kept: set[str]) -> None:
    """Remove the parts of earlier saves, and what a killed save left."""
    for pattern in ("config-*.toml", "network-*.safetensors", "labels-*.safetensors", "labels-*.parquet"):
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink(missing_ok=True)
    for path in folder.glob(".saving-*"):
        shutil.rmtree(path, ignore_errors=True)


def _layouts(files: dict[str, Path], folder: Path) -> Path:
    if "text/config.json" not in files:
        raise ModelError(
            f"{folder}: the text encoder's layout is not listed; the folder is damaged, train again"
        )
    return folder


# -- tensors -------------------------------------------------------------------------------------------------


def _network_tensors(embedder: Embedder, ranker: Ranker) -> Iterator[tuple[str, Tensor]]:
    yield from ((f"embedder.{name}", tensor) for name, tensor in embedder.state_dict().items())
    yield from ((f"ranker.{name}", tensor) for name, tensor in ranker.state_dict().items())


def _label_tensors(labels: Labels) -> Iterator[tuple[str, Tensor]]:
    yield "bags", labels.bags.rows
    yield "offsets", labels.bags.offsets
    for name in ("weights", "alpha", "centroids", "has_centroid"):
        yield name, getattr(labels, name)


def _write_tensors(path: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    ready = {}
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"{name} has values that are not finite; training diverged: lower the learning rate"
            )
        ready[name] = tensor.detach().cpu().contiguous().clone()
    save_file(ready, path)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """Mapped tensors; small files are also searched for values that are not finite."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read ({error}): copy the folder again or train again") from None
    if path.stat().st_size <= BIG:
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise ModelError(f"{path}: tensor {name!r} has values that are not finite; train again")
    return tensors


def _fill(embedder: Embedder, ranker: Ranker, tensors: dict[str, Tensor], path: Path) -> None:
    for prefix, module in (("embedder.", embedder), ("ranker.", ranker)):
        own = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        try:
            module.load_state_dict(own)
        except RuntimeError as error:
            raise ModelError(
                f"{path} does not fit its settings ({str(error).splitlines()[-1].strip()})"
            ) from None


def _labels(tensors: dict[str, Tensor], table: Path, manifest: dict[str, Any]) -> Labels:
    try:
        items = Items.from_table(pq.read_table(table))
    except (pa.ArrowException, OSError) as error:
        raise ModelError(f"{table} cannot be read ({error}): copy the folder again or train again") from None
    bags = PackedBags(tensors["bags"], tensors["offsets"])
    if not len(items) == len(bags) == len(tensors["weights"]):
        raise ModelError(f"{table} has {len(items)} labels, the tensors {len(bags)}: copy the folder again")
    return Labels(
        items, bags, tensors["weights"], tensors["alpha"], tensors["centroids"], tensors["has_centroid"],
        torch.ones(len(items), dtype=torch.bool), bool(manifest["own_items"]),
    )  # fmt: skip


def _label_table(items: Items) -> pa.Table:
    """Ids, texts and, where there are any, small pictures."""
    offsets, pictures = items.flat_images()
    if not len(pictures):
        return items.table
    # A label added from a file brings paths; the folder must not depend on files elsewhere.
    rows = [[read_bytes(p) for p in pictures[start:end]] for start, end in pairwise(offsets)]
    return items.table.append_column("images", pa.array(rows, pa.list_(pa.binary())))


def _version() -> str:
    from importlib.metadata import version

    return version("mufin")
