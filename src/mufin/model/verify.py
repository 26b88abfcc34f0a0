"""Verify a model folder: hash every part, then load the model once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mufin.errors import ModelError, MufinError
from mufin.files.folder import MANIFEST, check_part
from mufin.model.manifest import read_model_manifest
from mufin.model.store import load


@dataclass(frozen=True)
class Part:
    """A part of a model folder; `problem` is empty if it is as it was saved."""

    name: str
    file: str
    bytes: int
    problem: str = ""


@dataclass(frozen=True)
class Verdict:
    """The result for each part and for the folder as a whole."""

    parts: list[Part]
    problem: str = ""  # with the manifest, or with parts that do not match

    @property
    def usable(self) -> bool:
        """Return whether no problem was found."""
        return not self.problem and not any(part.problem for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        return {
            "usable": self.usable,
            "problem": self.problem or None,
            "parts": [{**vars(part), "problem": part.problem or None} for part in self.parts],
        }


def verify(folder: Path) -> Verdict:
    """Check the manifest and every byte of every part, then that the parts load as a model."""
    try:
        manifest = read_model_manifest(folder)
    except ModelError as error:
        return Verdict([], str(error))
    parts = [Part(MANIFEST, MANIFEST, (folder / MANIFEST).stat().st_size)]
    parts += [_check(folder, name, entry) for name, entry in manifest["parts"].items()]
    if any(part.problem for part in parts):
        return Verdict(parts)
    try:
        load(folder, "cpu")
    except MufinError as error:
        return Verdict(parts, str(error))
    return Verdict(parts)


def _check(folder: Path, name: str, entry: dict[str, Any]) -> Part:
    try:
        check_part(folder, entry)
    except (ModelError, OSError) as error:
        return Part(name, entry["file"], entry["size"], str(error))
    return Part(name, entry["file"], entry["size"])
