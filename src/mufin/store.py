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
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch
from transformers.initialization import no_init_weights

from mufin.config import Config
from mufin.encode.embedder import Embedder
from mufin.errors import ConfigError, ModelError, MufinError
from mufin.folder import (
    AGAIN,
    MANIFEST,
    checked,
    foreign,
    install,
    is_count,
    read_manifest,
    staging,
    state_of,
)
from mufin.labels import Labels
from mufin.lock import writing
from mufin.model import Mufin
from mufin.parts import (
    Files,
    fill_network,
    read_affinity,
    read_index,
    read_labels,
    read_memory,
    write_index,
    write_labels,
    write_memory,
    write_network,
)
from mufin.rank.fusion import NAMES, Fusion
from mufin.rank.ranker import Ranker
from mufin.retrieve.build import Index
from mufin.retrieve.memory import Memory
from mufin.tensors import write_tensors
from mufin.version import VERSION

FORMAT = 3
PARTS = {
    "config.toml", "network.safetensors", "labels.safetensors", "labels.parquet", "index.safetensors",
    "memory.safetensors", "layout/text/config.json",
}  # fmt: skip
TRIES = 3  # of a reader whose folder is being written to, before it waits for the writer


def save(model: Mufin, folder: Path | str) -> None:
    """Write the model; parts that have not changed are left as they are.

    One writer at a time: others wait. A ModelError if the model was loaded from this folder and another
    program has changed it since.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _replacing(model, folder) as staged:
        (staged / "config.toml").write_text(model.config.to_toml(), "utf-8")
        write_network(staged / "network.safetensors", model.embedder, model.ranker)
        _write_labels(model, staged)
        if model.affinity is not None:
            write_tensors(staged / "affinity.safetensors", model.affinity.tensors())
        model.embedder.save(staged / "layout")
        _keep(model, folder, install(staged, folder, _facts(model)))


def save_labels(model: Mufin, folder: Path | str) -> None:
    """Write the labels and the memory of a model whose network the folder holds already.

    What `save` does after labels came or went, without the megabytes that have not changed.
    """
    folder = Path(folder)
    with _replacing(model, folder) as staged:
        same = _networks(read_facts(folder))
        _write_labels(model, staged)
        _keep(model, folder, install(staged, folder, _facts(model), same))


@contextmanager
def changing(folder: Path, device: str = "auto") -> Iterator[Mufin]:
    """Load a model, let its labels be changed and save them, with no other writer in between."""
    read_facts(folder)  # a folder that is no model gets no lock
    with writing(folder):
        model = load(folder, device)
        yield model
        save_labels(model, folder)


def adopted(model: Mufin, folder: Path) -> Mufin:
    """The model with the labels and the memory that the folder holds now; a ModelError if it holds others'.

    What a long-running program does when another one has added labels.
    """
    manifest = read_facts(folder)
    if _networks(manifest) != _networks(model.saved[folder.resolve()]):
        raise ModelError(f"{folder} holds another model by now; load it again")
    files = checked(folder, manifest)
    fresh, device = copy(model), model.labels.alive.device
    fresh.labels, fresh.memory, fresh.index = _read_labels(
        files, manifest, model.embedder.text.width, model.config, device
    )
    _keep(fresh, folder, manifest)
    return fresh


@contextmanager
def _replacing(model: Mufin, folder: Path) -> Iterator[Path]:
    """A staging folder, once nobody else writes and the folder is as the model knows it."""
    with writing(folder):
        known, now = model.saved.get(folder.resolve()), state_of(folder)
        if known is not None and now not in (None, known["checksum"]):
            raise ModelError(
                f"{folder} was changed by another program since this model was loaded; "
                "load it again and repeat the change"
            )
        model.compact()
        with staging(folder) as staged:
            yield staged


def _keep(model: Mufin, folder: Path, manifest: dict[str, Any]) -> None:
    """Remember what the folder holds; copies of the model keep their own memory of it."""
    model.saved = {**model.saved, folder.resolve(): manifest}


def _networks(manifest: dict[str, Any]) -> dict[str, Any]:
    """The parts that adding and removing labels does not change."""
    changing = ("labels.", "index.", "memory.")
    return {part: entry for part, entry in manifest["parts"].items() if not part.startswith(changing)}


def _write_labels(model: Mufin, staged: Path) -> None:
    write_labels(model.labels, staged)
    write_index(model.index, model.memory, model.config.retrieve.search, staged)
    write_memory(model.memory, staged / "memory.safetensors")


def _facts(model: Mufin) -> dict[str, Any]:
    return {
        "mufin": FORMAT, "library": VERSION, "fusion": model.fusion.weights.tolist(),
        "calibration": model.fusion.calibration.tolist(), "own_items": model.labels.own_items,
        "labels": len(model.labels),
    }  # fmt: skip


def load(folder: Path | str, device: str = "auto") -> Mufin:
    """Read a model folder, large arrays mapped; a damaged or foreign one is a ModelError that says why."""
    folder, where = Path(folder), pick_device(device)
    for _ in range(TRIES):
        manifest = read_facts(folder)
        try:
            return _loaded(folder, manifest, where)
        except (MufinError, OSError):
            if state_of(folder) == manifest["checksum"]:
                raise
        # Another program has saved meanwhile, and removed what we were about to read.
    with writing(folder):
        return _loaded(folder, read_facts(folder), where)


def _loaded(folder: Path, manifest: dict[str, Any], where: torch.device) -> Mufin:
    files = checked(folder, manifest)
    try:
        config = Config.read(files["config.toml"])
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from None
    embedder, ranker = _networks_of(config, files["layout/text/config.json"].parents[1])
    fill_network(embedder, ranker, files["network.safetensors"])
    fusion = Fusion(torch.tensor(manifest["fusion"]), torch.tensor(manifest["calibration"]))
    affinity = read_affinity(files["affinity.safetensors"]) if "affinity.safetensors" in files else None
    labels, memory, index = _read_labels(files, manifest, embedder.text.width, config, where)
    model = Mufin(config, embedder.to(where), ranker.to(where), labels, fusion, memory, index, affinity)
    _keep(model, folder, manifest)
    return model


def _networks_of(config: Config, layout: Path) -> tuple[Embedder, Ranker]:
    """Networks of the stored layout; the stored weights are filled in later."""
    try:
        with no_init_weights():
            return Embedder(config, layout), Ranker(config)
    except MufinError:
        raise
    except Exception as error:  # of libraries that read these files, which anybody may have made
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{layout} makes no encoders ({reason}): {AGAIN}") from None


def _read_labels(
    files: Files, manifest: dict[str, Any], width: int, config: Config, device: torch.device
) -> tuple[Labels, Memory, Index]:
    """What adding and removing labels changes; `width` is that of the text encoder."""
    labels = read_labels(files, manifest, config, width).to(device)
    memory = read_memory(files, len(labels.alive), config.embed.dim, device)
    return labels, memory, read_index(files, len(labels.alive), config, device)


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
        for name, count in (("fusion", len(NAMES)), ("calibration", 4)):
            if len(manifest[name]) != count or not all(math.isfinite(value) for value in manifest[name]):
                raise ValueError(name)
        for name, kind in (("own_items", bool), ("library", str)):
            if not isinstance(manifest[name], kind):
                raise ValueError(name)
        if not is_count(manifest["labels"]):
            raise ValueError("labels")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise foreign(folder / MANIFEST, error) from None
    return manifest
