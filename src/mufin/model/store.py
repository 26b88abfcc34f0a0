"""The model folder: everything that prediction needs, nothing pickled, and a kill leaves it whole.

    mufin.json                 format, versions, the mixture of scores; of each part its file, size and hash
    config-<hash>.toml         the settings
    network-<hash>.safetensors encoders, projections, A_S, A_C
    labels-<hash>.safetensors  bags, w, α, centroids: mapped, not read
    points-<hash>.safetensors  the labels of the remembered training points
    <signal>-<hash>.*          what each signal knows of labels and points
    compatibility-<hash>.safetensors what scores labels without training, if the settings ask for it
    index-<hash>.safetensors   the entries of the index: mapped, not read
    index-<hash>.faiss         the approximate index over them, where there are many
    labels-<hash>.parquet      ids, texts, small pictures
    layout-<hash>/             text/ and vision/: the encoders' layouts and the tokenizer

Files are named by their content, and `mufin.json` is replaced last: readers see the old model or the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import torch

from mufin.config import Config
from mufin.encode.checkpoints import Layout
from mufin.encode.embedder import Embedder
from mufin.encode.fast_forms import accelerate
from mufin.encode.text import TextEncoder
from mufin.errors import ConfigError, ModelError, MufinError
from mufin.files.folder import AGAIN, MANIFEST, checked, foreign, install, staging, state_of
from mufin.files.lock import writing
from mufin.files.tensors import write_tensors
from mufin.model.manifest import FORMAT, read_facts, unchanged_parts
from mufin.model.mufin import Mufin
from mufin.model.parts import (
    Files,
    fill_network,
    networks,
    read_compatibility,
    read_index,
    read_labels,
    read_points,
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
        modules = networks(model.embedder, model.ranker, model.signals)
        write_network(staged / "network.safetensors", modules)
        _write_labels(model, staged)
        if model.compatibility is not None:
            write_tensors(staged / "compatibility.safetensors", model.compatibility.tensors())
        model.embedder.save(staged / "layout")
        _keep(model, folder, install(staged, folder, _facts(model)))


def save_labels(model: Mufin, folder: Path | str) -> None:
    """Write the labels and the memory of a model whose network the folder holds already.

    What `save` does after labels came or went, without the megabytes that have not changed.
    """
    folder = Path(folder)
    with _replacing(model, folder) as staged:
        same = unchanged_parts(read_facts(folder))
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
    if unchanged_parts(manifest) != unchanged_parts(model.saved[folder.resolve()]):
        raise ModelError(f"{folder} holds another model by now; load it again")
    files = checked(folder, manifest)
    fresh, device = copy(model), model.labels.alive.device
    known = _read_known(files, manifest, model.config, (model.embedder, model.ranker), device)
    fresh.labels, fresh.index, fresh.points = known.labels, known.index, known.points
    fresh.signals = _read_signals(files, known, model.signals, device)
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


def _write_labels(model: Mufin, staged: Path) -> None:
    write_labels(model.labels, staged)
    write_index(model.index, model.config.retrieve.search, sample(model.point_vectors()), staged)
    write_points(model.points, staged / "points.safetensors")
    for signal in model.signals:
        signal.write(staged)


def _facts(model: Mufin) -> dict[str, Any]:
    return {
        "mufin": FORMAT, "library": VERSION, "mixture": model.mixture.stored(),
        "own_items": model.labels.own_items, "untrained": model.labels.untrained,
        "labels": len(model.labels),
    }  # fmt: skip


def load(folder: Path | str, device: str = "auto", exact: bool = False) -> Mufin:
    """Read a model folder, large arrays mapped; a damaged or foreign one is a ModelError that says why.

    The encoders take the form that predicts fastest on the device, which rounds to bf16 on GPUs and on CPUs
    that multiply it; `exact` keeps them as they were trained. Either can be changed and saved.
    """
    folder, where = Path(folder), pick_device(device)
    for _ in range(TRIES):
        manifest = read_facts(folder)
        try:
            return _loaded(folder, manifest, where, exact)
        except (MufinError, OSError):
            if state_of(folder) == manifest["checksum"]:
                raise
        # Another program has saved meanwhile, and removed what we were about to read.
    with writing(folder):
        return _loaded(folder, read_facts(folder), where, exact)


def _loaded(folder: Path, manifest: dict[str, Any], where: torch.device, exact: bool) -> Mufin:
    files = checked(folder, manifest)
    try:
        config = Config.read(files["config.toml"])
    except ConfigError as error:
        raise ModelError(f"{folder}: {error}") from None
    layout = Layout(files["layout/text/config.json"].parents[1], fast=not exact and where.type == "cpu")
    embedder, ranker, signals = _networks_of(config, layout)
    weights = fill_network(files["network.safetensors"], networks(embedder, ranker, signals), exact)
    _place(embedder, signals, where, exact)
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
        raise foreign(folder / MANIFEST, error) from None
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
    model.exact = exact
    trim()
    _keep(model, folder, manifest)
    return model


def _place(embedder: Embedder, signals: Sequence[Signal], device: torch.device, exact: bool) -> None:
    """Move what encodes to the device, in its fast form unless `exact`."""
    embedder.place(device, exact)
    for signal in signals:
        if isinstance(signal.network, TextEncoder) and not exact:
            accelerate(signal.network, device)


def _networks_of(config: Config, layout: Layout) -> tuple[Embedder, Ranker, Sequence[Signal]]:
    """Networks of the stored layout; the stored weights are filled in later."""
    try:
        return Embedder(config, layout), Ranker(config), signals_of(config, layout)
    except MufinError:
        raise
    except Exception as error:  # of libraries that read these files, which anybody may have made
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ModelError(f"{layout.folder} makes no encoders ({reason}): {AGAIN}") from None


def _read_known(
    files: Files,
    manifest: dict[str, Any],
    config: Config,
    networks: tuple[Embedder, Ranker],
    device: torch.device,
) -> Known:
    """What adding and removing labels changes, but for the signals."""
    labels = read_labels(files, manifest, config).to(device)
    points: Lists = read_points(files["points.safetensors"], len(labels.alive)).to(device)
    index: Index = read_index(files, len(labels.alive), config, device)
    return Known(labels, index, tuple(config.retrieve.entries), *networks, points)


def _read_signals(
    files: Files, known: Known, signals: Sequence[Signal], device: torch.device
) -> tuple[Signal, ...]:
    return tuple(signal.load(files, known).to(device) for signal in signals)


def pick_device(name: str) -> torch.device:
    """`auto`: a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.zeros(0, device=name).device
    except (RuntimeError, AssertionError):
        raise ConfigError(f"device {name!r} cannot be used here; try auto, cpu or cuda") from None
