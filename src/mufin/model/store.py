"""Save and load a model folder: all that prediction needs, nothing pickled, intact after a killed save.

    mufin.json                 format, versions, mixture; file, size and hash of each part
    config-<hash>.toml         settings
    network-<hash>.safetensors encoders, projections, A_S, A_C
    labels-<hash>.safetensors  bags, w, α, centroids; memory-mapped
    points-<hash>.safetensors  labels of the remembered training points
    <signal>-<hash>.*          data of each signal about labels and points
    compatibility-<hash>.safetensors scoring of untrained labels, if the settings ask for it
    index-<hash>.safetensors   index entries; memory-mapped
    index-<hash>.faiss         approximate index over many entries
    labels-<hash>.parquet      ids, texts, thumbnails
    layout-<hash>/             text/ and vision/: the encoders' configurations and the tokenizer

Files are named by content, and `mufin.json` is replaced last: readers see the old model or the new one.
"""

from __future__ import annotations

import copyreg
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mufin.config import Config
from mufin.encode.checkpoints import Layout
from mufin.encode.embedder import Embedder
from mufin.encode.fast_forms import accelerate
from mufin.encode.text import TextEncoder
from mufin.errors import ConfigError, ModelError, MufinError
from mufin.files.folder import (
    MANIFEST,
    RECOVERY_HINT,
    check_parts,
    install,
    invalid_manifest,
    saved_checksum,
    staging,
)
from mufin.files.lock import writing
from mufin.files.tensors import write_tensors
from mufin.model.hub import local_folder, write_card
from mufin.model.manifest import FORMAT, label_independent_parts, read_model_manifest, same_network
from mufin.model.mufin import Mufin
from mufin.model.parts import (
    Files,
    named_networks,
    read_compatibility,
    read_index,
    read_labels,
    read_network,
    read_points,
    sweep_index,
    write_index,
    write_labels,
    write_network,
    write_points,
)
from mufin.rank.ranker import Ranker
from mufin.retrieve.approximate import sample
from mufin.retrieve.build import Index
from mufin.retrieve.lists import Lists
from mufin.runtime.memory import release, trim
from mufin.signals import signals_of
from mufin.signals.base import Known, Signal
from mufin.signals.mixture import Mixture
from mufin.version import VERSION

LOAD_ATTEMPTS = 3  # while another program saves, before waiting for it to finish


def save(model: Mufin, folder: Path | str) -> None:
    """Write the model to a folder; unchanged parts are not rewritten.

    Waits for other writers. Raises a ModelError if the model was loaded from this folder and another program
    has changed the folder since.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _staged_save(model, folder) as staged:
        (staged / "config.toml").write_text(model.config.to_toml(), "utf-8")
        modules = named_networks(model.embedder, model.ranker, model.signals)
        write_network(staged / "network.safetensors", modules)
        _write_labels(model, staged)
        if model.compatibility is not None:
            write_tensors(staged / "compatibility.safetensors", model.compatibility.tensors())
        model.embedder.save(staged / "layout")
        _finish(model, folder, staged, {})


def save_labels(model: Mufin, folder: Path | str) -> None:
    """Write only the labels and the memory of a model whose network is already in the folder.

    Equivalent to `save` after adding or removing labels, but skips the network.
    """
    folder = Path(folder)
    with _staged_save(model, folder) as staged:
        same = label_independent_parts(read_model_manifest(folder))
        _write_labels(model, staged)
        _finish(model, folder, staged, same)


@contextmanager
def editing_labels(folder: Path, device: str = "auto") -> Iterator[Mufin]:
    """Load a model, yield it for changes to its labels, and save them, all under one lock."""
    read_model_manifest(folder)  # create no lock file in a folder without a model
    with writing(folder):
        model = load(folder, device)
        yield model
        save_labels(model, folder)


def reload_labels(model: Mufin, folder: Path) -> Mufin:
    """Return the model with the labels and memory now in its folder, after another program changed them.

    Raises a ModelError if the folder holds another model.
    """
    if not same_network(model.saved[folder.resolve()], folder):
        raise ModelError(f"{folder} now holds another model; load it again")
    manifest = read_model_manifest(folder)
    files = check_parts(folder, manifest)
    fresh, device = copy(model), model.labels.alive.device
    known = _read_known(files, manifest, model.config, (model.embedder, model.ranker), device)
    fresh.labels, fresh.index, fresh.points = known.labels, known.index, known.points
    fresh.signals = _read_signals(files, known, model.signals, device)
    _remember(fresh, folder, manifest)
    return fresh


@contextmanager
def _staged_save(model: Mufin, folder: Path) -> Iterator[Path]:
    """Yield a staging folder, under the lock; reject a folder that another program has changed."""
    with writing(folder):
        known, now = model.saved.get(folder.resolve()), saved_checksum(folder)
        if known is not None and now not in (None, known["checksum"]):
            raise ModelError(
                f"{folder} was changed by another program since this model was loaded; "
                "load it again and repeat the change"
            )
        model.compact()
        try:
            with staging(folder) as staged:
                yield staged
        except OSError as error:
            error.filename = error.filename or str(folder)  # not all libraries name the file
            raise


def _finish(model: Mufin, folder: Path, staged: Path, unchanged: dict[str, Any]) -> None:
    """Install the staged parts and write the model card."""
    manifest = install(staged, folder, _manifest_facts(model), unchanged)
    if folder.resolve() in model.saved:  # not a copy, which shares the collection
        model.index = sweep_index(model.index)
    _remember(model, folder, manifest)
    write_card(folder, staged, manifest, model.config)


def _remember(model: Mufin, folder: Path, manifest: dict[str, Any]) -> None:
    """Record the manifest of the folder; copies of the model keep their own record."""
    model.saved = {**model.saved, folder.resolve(): manifest}


def _write_labels(model: Mufin, staged: Path) -> None:
    write_labels(model.labels, staged)
    model.index = write_index(model.index, model.config.retrieve, sample(model.point_vectors()), staged)
    write_points(model.points, staged / "points.safetensors")
    for signal in model.signals:
        signal.write(staged)


def _manifest_facts(model: Mufin) -> dict[str, Any]:
    return {
        "mufin": FORMAT, "library": VERSION, "mixture": model.mixture.stored(),
        "own_items": model.labels.own_items, "untrained": model.labels.untrained,
        "labels": len(model.labels), "trained_on": model.trained_on,
    }  # fmt: skip


def load(folder: Path | str, device: str = "auto", exact: bool = False, revision: str | None = None) -> Mufin:
    """Read a model folder, with large arrays memory-mapped; raise a ModelError if it is damaged or invalid.

    A string "user/model" that is no local path is a model of the Hugging Face Hub, at `revision` if given.

    Encoders take the form that predicts fastest on the device, which rounds to bf16 on GPUs and on CPUs with
    bf16 instructions. `exact` keeps them as they were trained. Either form can be changed and saved.
    """
    folder, where = local_folder(folder, revision), pick_device(device)
    for _ in range(LOAD_ATTEMPTS):
        manifest = read_model_manifest(folder)
        try:
            return _load(folder, manifest, where, exact)
        except (MufinError, OSError):
            if saved_checksum(folder) == manifest["checksum"]:
                raise
        # Another program saved in the meantime and removed files that this one was about to read.
    with writing(folder):
        return _load(folder, read_model_manifest(folder), where, exact)


def _load(folder: Path, manifest: dict[str, Any], where: torch.device, exact: bool) -> Mufin:
    files = check_parts(folder, manifest)
    try:
        config = Config.read(files["config.toml"], check=False)
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from None
    layout = Layout(files["layout/text/config.json"].parents[1], None if exact else where)
    embedder, ranker, signals = _build_networks(config, layout)
    weights = read_network(files["network.safetensors"], named_networks(embedder, ranker, signals), exact)
    _move_encoders(embedder, signals, where, exact)
    if not exact:
        release(next(iter(weights.values())), files["network.safetensors"])
    compatibility = (
        read_compatibility(files["compatibility.safetensors"])
        if "compatibility.safetensors" in files
        else None
    )
    known = _read_known(files, manifest, config, (embedder, ranker.to(where)), where)
    signals = _read_signals(files, known, signals, where)
    try:
        mixture = Mixture.of(signals, manifest["mixture"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise invalid_manifest(folder / MANIFEST, error) from None
    model = Mufin(
        config,
        known.embedder,
        known.ranker,
        known.labels,
        signals,
        mixture,
        known.points,
        known.index,
        compatibility,
    )
    model.exact, model.trained_on = exact, manifest.get("trained_on", {})
    trim()
    _remember(model, folder, manifest)
    return model


def _move_encoders(embedder: Embedder, signals: Sequence[Signal], device: torch.device, exact: bool) -> None:
    """Move the encoders to the device, in their fast form unless `exact`."""
    embedder.place(device, exact)
    for signal in signals:
        if isinstance(signal.network, TextEncoder) and not exact:  # not `FastTextEncoder`
            accelerate(signal.network, device)


def _build_networks(config: Config, layout: Layout) -> tuple[Embedder, Ranker, Sequence[Signal]]:
    """Build networks from the stored configuration; their weights are loaded later."""
    try:
        return Embedder(config, layout), Ranker(config), signals_of(config, layout)
    except MufinError:
        raise
    except Exception as error:  # libraries may raise anything for an untrusted configuration
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(
            f"{layout.folder} does not define valid encoders ({reason}): {RECOVERY_HINT}"
        ) from None


def _read_known(
    files: Files,
    manifest: dict[str, Any],
    config: Config,
    networks: tuple[Embedder, Ranker],
    device: torch.device,
) -> Known:
    """Read the parts that adding and removing labels changes, except the signals."""
    labels = read_labels(files, manifest, config).to(device)
    points: Lists = read_points(files["points.safetensors"], len(labels.alive)).to(device)
    index: Index = read_index(files, len(labels.alive), config, device)
    return Known(labels, index, tuple(config.retrieve.entries), *networks, points)


def _read_signals(
    files: Files, known: Known, signals: Sequence[Signal], device: torch.device
) -> tuple[Signal, ...]:
    return tuple(signal.load(files, known).to(device) for signal in signals)


def _pickled(model: Mufin) -> tuple[Any, ...]:
    """Reduce a model to the files of its folder: the fast forms of encoders cannot be pickled."""
    with TemporaryDirectory(prefix="mufin-pickle-") as name:
        folder = Path(name)
        save(copy(model), folder)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
    device = "cpu" if model.labels.alive.device.type == "cpu" else "auto"
    return _unpickled, (files, model.exact, device, model.saved)


def _unpickled(files: dict[str, bytes], exact: bool, device: str, saved: dict[Path, Any]) -> Mufin:
    with TemporaryDirectory(prefix="mufin-pickle-", ignore_cleanup_errors=True) as name:
        for path, encoded in files.items():
            (Path(name) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(name) / path).write_bytes(encoded)
        model = load(name, device, exact)
    model.saved = saved
    return model


copyreg.pickle(Mufin, _pickled)


def pick_device(name: str) -> torch.device:
    """Return the torch device of this name; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device {name!r} cannot be used on this machine; try auto, cpu or cuda") from None
