"""Checkpoints: the state of a training on disk, from which a killed run resumes with the same result.

    RUN/.mufin-training/00007/state.json         position, settings, hashes of the files
                              state.safetensors  networks, optimizers, random states
                              kept.safetensors   large tensors that seldom change; linked if unchanged

A checkpoint is written to a hidden folder, synced and renamed, so it is complete or absent. The newest two
are kept: if the last one is damaged, training resumes from the one before.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mufin.errors import ModelError, UsageError
from mufin.files.folder import MANIFEST, file_hash, manifest_text
from mufin.files.lock import LOCK_NAME, writing
from mufin.files.tensors import read_tensors, write_tensors

FOLDER, REMOVED = ".mufin-training", ".mufin-training-removed"
FORMAT = 1
ROTATED = 2  # newest checkpoints that are kept
MAX_SHARE = 0.03  # of the training time may be spent on writing checkpoints
OVERWRITE = 'use --overwrite (in Python: if_exists="overwrite")'
WRITING = ".writing-"  # prefix of a checkpoint that is not complete
FACTS, STATE, KEPT = "state.json", "state.safetensors", "kept.safetensors"

DAMAGED = (  # what a state.json with unexpected content raises
    ModelError, OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip

log = logging.getLogger("mufin.train")
State = dict[str, Any]  # nested dicts and lists of tensors, numbers and texts
IfExists = Literal["refuse", "resume", "overwrite"]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read: the module it was written in, what was trained, and its state."""

    module: str
    identity: State
    state: State
    kept: dict[str, Tensor]


class Checkpoints:
    """Write the state of a training at intervals, and read it after a kill."""

    def __init__(self, run: Path, minutes: float) -> None:
        self.folder, self.seconds = run / FOLDER, 60 * minutes
        self.identity: State = {}  # settings and data; set before the first checkpoint is written
        self.saved: Saved | None = None  # where to resume
        self._kept: Mapping[str, Tensor] = {}  # of the last checkpoint written
        self._written, self._cost = time.monotonic(), 0.0

    def due(self) -> bool:
        """Whether it is time for a checkpoint: the interval has passed, and writing costs little of it."""
        passed = time.monotonic() - self._written
        return passed >= self.seconds and (not self.seconds or passed * MAX_SHARE >= self._cost)

    def write(self, module: str, state: State, kept: Mapping[str, Tensor]) -> None:
        """Write a checkpoint; if the disk does not allow it, warn and keep the previous one."""
        started = time.monotonic()
        try:
            self._write(module, state, kept)
        except OSError as error:
            log.warning("no checkpoint was written to %s (%s); continuing", self.folder, error.strerror)
        self._written, self._cost = time.monotonic(), time.monotonic() - started

    def _write(self, module: str, state: State, kept: Mapping[str, Tensor]) -> None:
        self.folder.mkdir(exist_ok=True)
        for leftover in self.folder.glob(f"{WRITING}*"):  # of a killed run, since we hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        numbers = _numbers(self.folder)
        staged = Path(tempfile.mkdtemp(prefix=WRITING, dir=self.folder))
        try:
            tensors: dict[str, Tensor] = {}
            packed = pack(state, tensors)
            write_tensors(staged / STATE, iter(tensors.items()))
            unchanged = kept.keys() == self._kept.keys() and all(kept[k] is self._kept[k] for k in kept)
            if not (numbers and unchanged and _link(self._path(numbers[-1]) / KEPT, staged / KEPT)):
                write_tensors(staged / KEPT, iter(kept.items()))
            facts = {
                "format": FORMAT, "module": module, "identity": self.identity, "written": time.time(),
                "state": packed, "files": {name: file_hash(staged / name) for name in (STATE, KEPT)},
            }  # fmt: skip
            (staged / FACTS).write_text(manifest_text(facts), "utf-8")
            for path in (staged / STATE, staged / KEPT, staged / FACTS, staged):
                _sync(path)
            staged.rename(self._path(numbers[-1] + 1 if numbers else 1))
            _sync(self.folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        self._kept = dict(kept)
        for number in numbers[: 1 - ROTATED]:
            shutil.rmtree(self._path(number), ignore_errors=True)

    def discard(self) -> None:
        """Remove all checkpoints in one step: a part of one would look like a stopped training."""
        removed = self.folder.with_name(REMOVED)
        shutil.rmtree(removed, ignore_errors=True)  # left by a kill
        with suppress(OSError):
            self.folder.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}"

    def read(self) -> Saved | None:
        """Read the newest intact checkpoint; None if there is none."""
        numbers = _numbers(self.folder)
        for number in reversed(numbers):
            try:
                return _read(self._path(number))
            except DAMAGED as error:
                log.warning("checkpoint %s is damaged (%s); using the one before", self._path(number), error)
        return None

    def resume(self, identity: State) -> None:
        """Resume from the last checkpoint, which must be of the same settings and data."""
        self.saved, self.identity = self.read(), identity
        if self.saved is not None:
            _refuse_changes(self.folder.parent, self.saved.identity, identity)

    def refuse_other(self, settings: State) -> None:
        """Raise UsageError if the newest checkpoint has other settings; its tensors are not read."""
        with suppress(*DAMAGED):
            newest = self._path(_numbers(self.folder)[-1])
            then = json.loads((newest / FACTS).read_text("utf-8"))["identity"]
            _refuse_changes(self.folder.parent, {name: then[name] for name in settings}, settings)

    def restart(self, identity: State) -> None:
        """Start again, without the checkpoints of an earlier training."""
        self.discard()
        self.folder.mkdir(exist_ok=True)
        self.identity = identity

    def stopped(self) -> str:
        """Describe where an earlier training stopped; empty if there is none."""
        for number in reversed(_numbers(self.folder)):
            with suppress(*DAMAGED):
                facts = json.loads((self._path(number) / FACTS).read_text("utf-8"))
                minutes = max(0, round((time.time() - facts["written"]) / 60))
                stage = {"pretrain": "pre-training"}.get(facts["module"], "fine-tuning")
                return f"stopped during {stage}; its last checkpoint is {minutes} min old"
        return ""


def _refuse_changes(run: Path, then: State, now: State) -> None:
    if changes := differences(then, now):
        raise UsageError(
            f"{run}: cannot resume, since the stopped training was a different one: "
            f"{'; '.join(changes[:5])}. Undo that, or to start again, {OVERWRITE}"
        )


@contextmanager
def claimed(run: Path, minutes: float, if_exists: IfExists) -> Iterator[Checkpoints]:
    """Create the folder of a run and keep other writers out; overwrite nothing unasked.

    A folder that is new and still empty at the end is removed.
    """
    checkpoints = Checkpoints(run, minutes)
    refuse(run, if_exists)
    existed = run.exists()
    run.mkdir(parents=True, exist_ok=True)
    if not os.access(run, os.W_OK):
        raise UsageError(f"{run} cannot be written to; choose another folder")
    try:
        with writing(run, patience=0):
            checkpoints.folder.mkdir(exist_ok=True)  # an old model in this folder is not the result
            yield checkpoints
    finally:
        with suppress(OSError):
            if not (run / MANIFEST).exists():
                checkpoints.folder.rmdir()  # if empty
        with suppress(OSError):
            if not existed and [path.name for path in run.iterdir()] == [LOCK_NAME]:
                (run / LOCK_NAME).unlink()
                run.rmdir()


def is_finished(run: Path) -> bool:
    """Whether a folder holds a model, and no other training has started there."""
    return (run / MANIFEST).exists() and not (run / FOLDER).exists()


def refuse(run: Path, if_exists: IfExists) -> None:
    """Raise UsageError if the folder holds something that may not be replaced."""
    if run.exists() and not run.is_dir():
        raise UsageError(f"{run} is a file; choose a folder")
    model, stopped = (run / MANIFEST).exists(), Checkpoints(run, 0).stopped()
    if if_exists == "refuse" and stopped:
        raise UsageError(
            f"{run} holds a training {stopped}. To continue it, use --resume (in Python: "
            f'if_exists="resume"); to start again, {OVERWRITE}'
        )
    if if_exists == "refuse" and model:
        raise UsageError(f"{run} already holds a model. Choose another folder; to replace it, {OVERWRITE}")
    if run.is_dir() and not model and not stopped:
        names = [path.name for path in run.iterdir()]  # those of an interrupted run are allowed
        if others := [name for name in names if not name.startswith((".mufin", "logs"))]:
            raise UsageError(
                f"{run} is not empty and not a model folder (it contains {others[0]}); choose another folder"
            )


def _numbers(folder: Path) -> list[int]:
    """Return the numbers of the checkpoints in a folder, oldest first."""
    with suppress(OSError):
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    return []


def _read(path: Path) -> Saved:
    """Read and verify a checkpoint."""
    text = (path / FACTS).read_text("utf-8")
    facts = json.loads(text)
    if text != manifest_text(facts) or facts["format"] != FORMAT or not isinstance(facts["identity"], dict):
        raise ModelError(f"{FACTS} has changed or has another format")
    for name in (STATE, KEPT):
        if file_hash(path / name) != facts["files"][name]:
            raise ModelError(f"{name} has changed")
    # Copies, since optimizers change them in place.
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path / STATE).all.items()}
    kept = {name: tensor.clone() for name, tensor in read_tensors(path / KEPT).all.items()}
    return Saved(facts["module"], facts["identity"], unpack(facts["state"], tensors), kept)


def _link(source: Path, target: Path) -> bool:
    """Link a file; return False where that is not possible."""
    with suppress(OSError):
        os.link(source, target)
        return True
    return False


def _sync(path: Path) -> None:
    """Force a file or folder to disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError:
        if not path.is_dir():  # some file systems cannot sync folders
            raise
    finally:
        os.close(file)


def pack(value: Any, tensors: dict[str, Tensor], name: str = "state") -> Any:
    """Turn nested state into JSON; tensors go into `tensors`, under the names that replace them.

    >>> pack({1: [0.5, "a"]}, {})
    {'dict': [[1, {'list': [0.5, 'a']}]]}
    """
    match value:
        case Tensor():
            tensors[name] = value
            return {"tensor": name}
        case dict():
            return {"dict": [[key, pack(each, tensors, f"{name}.{key}")] for key, each in value.items()]}
        case list() | tuple():
            return {"list": [pack(each, tensors, f"{name}.{i}") for i, each in enumerate(value)]}
    return value


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `pack`; tuples become lists."""
    match packed:
        case {"tensor": name}:
            return tensors[name]
        case {"dict": pairs}:
            return {key: unpack(each, tensors) for key, each in pairs}
        case {"list": values}:
            return [unpack(each, tensors) for each in values]
    return packed


def trained_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the trained weights and all buffers; frozen weights come with the encoder."""
    named = module.state_dict(keep_vars=True).items()
    return {name: t.detach() for name, t in named if not isinstance(t, nn.Parameter) or t.requires_grad}


@torch.no_grad()
def load_trained_state(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Restore what `trained_state` returned."""
    own = trained_state(module)
    for name, tensor in state.items():
        own[name].copy_(tensor)


def differences(then: State, now: State, name: str = "") -> list[str]:
    """Describe how two nested states differ.

    >>> differences({"seed": 1, "rank": {"beta": 0.5}}, {"seed": 1, "rank": {"beta": 0.7}})
    ['rank.beta was 0.5 and is 0.7']
    """
    found = []
    for key in {**then, **now}:
        a, b, path = then.get(key), now.get(key), f"{name}.{key}".strip(".")
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, path)
        elif a != b:  # the hash of data says nothing to a user
            found.append(f"{path} have changed" if name == "catalogue" else f"{path} was {a!r} and is {b!r}")
    return found
