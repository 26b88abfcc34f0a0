"""A folder of parts that is always whole: files named by their content, a manifest that is replaced last."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mufin.errors import ModelError

MANIFEST = "mufin.json"
BIG = 64 << 20  # bytes; larger files are checked by samples at load, so that they are mapped and not read
SAMPLE = 1 << 16


def install(
    staging: Path, folder: Path, facts: dict[str, Any], same: Mapping[str, dict[str, Any]] | None = None
) -> None:
    """Move every staged file into the folder, then put the manifest in place, then sweep the rest.

    `same` are the manifest's entries of parts that stay as the folder has them.
    """
    parts = {str(path.relative_to(staging)): path for path in sorted(staging.rglob("*")) if path.is_file()}
    hashes = {part: file_hash(path) for part, path in parts.items()}
    names = _names(hashes)
    entries = {part: _move(path, folder, names[part], hashes[part]) for part, path in parts.items()}
    _replace(
        folder / MANIFEST,
        json.dumps(facts | {"parts": dict(sorted({**(same or {}), **entries}.items()))}, indent=1),
    )
    _sweep(folder, parts, {entry["file"] for entry in entries.values()})


def checked(folder: Path, manifest: dict[str, Any]) -> dict[str, Path]:
    """The file of each part, there and as it was saved."""
    return {part: _checked(folder, entry) for part, entry in manifest["parts"].items()}


def read_manifest(folder: Path, version: int, parts: Collection[str]) -> dict[str, Any]:
    """The manifest of a model folder of at most this version, which lists at least these parts."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "is not a model folder (no mufin.json in it)" if folder.is_dir() else "does not exist"
        raise ModelError(f"{folder} {what}; train one with: mufin train CATALOGUE -o {folder}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
        found = manifest["mufin"]
        if not isinstance(found, int) or found > version:
            raise ModelError(f"{path}: format {found!r}, this mufin reads up to {version}; update mufin")
        missing = set(parts) - set(manifest["parts"])
        if missing:
            listed = ", ".join(sorted(missing))
            raise ModelError(f"{path}: does not list {listed}; the folder is damaged, train again")
        for entry in manifest["parts"].values():
            _ = entry["file"], entry["size"], entry["hash"]
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise foreign(path, error) from None
    return manifest


def foreign(path: Path, error: Exception) -> ModelError:
    """What to say of a manifest that is none of ours."""
    return ModelError(f"{path}: not a manifest of mufin ({type(error).__name__}: {error}); train again")


def _names(hashes: dict[str, str]) -> dict[str, str]:
    """For each part a name that says its content, so that no file of an earlier save is ever overwritten.

    Layout files keep their names, since the libraries that read them look for those; their folder does not.
    """
    together = "".join(digest for part, digest in sorted(hashes.items()) if "/" in part)
    layout = hashlib.blake2b(together.encode(), digest_size=5).hexdigest()
    names = {}
    for part, digest in hashes.items():
        stem, _, rest = part.partition("/" if "/" in part else ".")
        names[part] = f"{stem}-{layout}/{rest}" if "/" in part else f"{stem}-{digest[:10]}.{rest}"
    return names


def _move(path: Path, folder: Path, name: str, digest: str) -> dict[str, Any]:
    """Move a staged part into the folder, unless it is there already."""
    size, target = path.stat().st_size, folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or file_hash(target) != digest:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(target)
    return {"file": name, "size": size, "hash": digest}


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


def _sweep(folder: Path, parts: Collection[str], kept: set[str]) -> None:
    """Remove the parts of earlier saves, and what a killed save left; nothing that a user put there."""
    sometimes = {"index.faiss", "memory.faiss", "affinity.safetensors"}  # which not every save has
    first = {Path(part).parts[0] for part in parts} | sometimes
    patterns = [f"{Path(name).stem}-*{Path(name).suffix}" for name in first]
    names = {Path(name).parts[0] for name in kept}
    for path in [path for pattern in (*patterns, ".saving-*") for path in folder.glob(pattern)]:
        if path.is_dir() and path.name not in names:
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in names:
            path.unlink(missing_ok=True)
