"""A folder of parts that is always complete: files named by content, the manifest replaced last."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from mufin.errors import ModelError

MANIFEST = "mufin.json"
STAGING = ".mufin-saving-"
RECORD = "record.json"  # in a staging folder: the files that its save may leave behind
BLOCK = 4 << 20  # bytes hashed at a time
LONGEST = 4 << 20  # bytes of a manifest
FILE = re.compile(r"[a-z]+-[0-9a-f]{10}(\.[a-z]+|(/[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*)+)")
HASH = re.compile(r"[0-9a-f]{32}")
AGAIN = "copy the folder again or train again"


# -- write ---------------------------------------------------------------------------------------------------


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A new folder inside `folder` to prepare parts in; whoever calls it holds the lock."""
    for left in folder.glob(f"{STAGING}*"):
        if (left / RECORD).is_file():  # ours, and its writer is dead: we have the lock
            _discard(left, folder)
    path = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
    try:
        (path / RECORD).write_text("[]", "utf-8")
        yield path
    finally:
        _discard(path, folder)


def install(
    staged: Path, folder: Path, facts: dict[str, Any], same: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Move every staged part into the folder, then put the manifest in place; gives the manifest.

    `same` are the manifest's entries of parts that stay as the folder has them.
    """
    parts = {path.relative_to(staged).as_posix(): path for path in _files(staged) if path != staged / RECORD}
    hashes = {part: file_hash(path) for part, path in parts.items()}
    names = _names(hashes)
    entries = {
        part: {"file": names[part], "size": path.stat().st_size, "hash": hashes[part]}
        for part, path in parts.items()
    }
    listed = dict(sorted({**(same or {}), **entries}.items()))
    manifest = sealed(facts | {"parts": listed})
    leaving = named(folder) | {entry["file"] for entry in listed.values()}
    _write(staged / RECORD, json.dumps(sorted(leaving)))
    for part, path in parts.items():
        _move(path, folder / names[part], hashes[part])
    _write(staged / MANIFEST, text_of(manifest))
    (staged / MANIFEST).replace(folder / MANIFEST)
    return manifest


def _names(hashes: dict[str, str]) -> dict[str, str]:
    """For each part a name that says its content, so that no file of an earlier save is ever overwritten.

    Layout files keep their names, since the libraries that read them look for those; their folder does not.
    """
    together = "".join(f"{part} {digest}\n" for part, digest in sorted(hashes.items()) if "/" in part)
    layout = xxhash.xxh3_128_hexdigest(together.encode())[:10]
    names = {}
    for part, digest in hashes.items():
        stem, _, rest = part.partition("/" if "/" in part else ".")
        names[part] = f"{stem}-{layout}/{rest}" if "/" in part else f"{stem}-{digest[:10]}.{rest}"
    return names


def _move(path: Path, target: Path, digest: str) -> None:
    """Move a staged part into the folder, unless it is there already."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or file_hash(target) != digest:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(target)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _discard(staged: Path, folder: Path) -> None:
    """Remove a staging folder, and what its record lists but the manifest in place does not name."""
    needed = named(folder)
    if needed or not (folder / MANIFEST).exists():  # else it is damaged: who knows what it needs
        for name in _recorded(staged) - needed:
            _remove(folder, name)
    shutil.rmtree(staged, ignore_errors=True)


def _recorded(staged: Path) -> set[str]:
    try:
        return {name for name in json.loads((staged / RECORD).read_text("utf-8")) if FILE.fullmatch(name)}
    except (OSError, ValueError, TypeError, RecursionError):
        return set()  # its writer was killed before it could move anything


def _remove(folder: Path, name: str) -> None:
    """Remove a part, and the folders that it leaves empty; nothing that a link leads to."""
    parents = [folder / parent for parent in Path(name).parents][:-1]
    if any(parent.is_symlink() for parent in parents):
        return
    with suppress(OSError):
        (folder / name).unlink(missing_ok=True)
        for parent in parents:
            parent.rmdir()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# -- read ----------------------------------------------------------------------------------------------------


def read_manifest(folder: Path, version: int, parts: Collection[str]) -> dict[str, Any]:
    """The manifest of a model folder of this version, unharmed, which lists at least these parts."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "is not a model folder (no mufin.json in it)" if folder.is_dir() else "does not exist"
        raise ModelError(f"{folder} {what}; train one with: mufin train CATALOGUE -o {folder}")
    manifest, text = _parsed(path)
    found = manifest.get("mufin")
    if isinstance(found, bool) or not isinstance(found, int) or found > version:
        raise ModelError(f"{path}: format {found!r:.20}, this mufin reads {version}; update mufin")
    if found < version:
        raise ModelError(
            f"{path}: format {found}, written by an earlier mufin, which this one does not read; train again"
        )
    if text != text_of(manifest):
        raise ModelError(f"{path} is not what was saved (its checksum differs): {AGAIN}")
    try:
        for part, entry in manifest["parts"].items():
            _check_entry(part, entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise foreign(path, error) from None
    if missing := set(parts) - set(manifest["parts"]):
        raise ModelError(f"{path}: does not list {', '.join(sorted(missing))}; {AGAIN}")
    return manifest


def _parsed(path: Path) -> tuple[dict[str, Any], str]:
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST).decode()
        manifest = json.loads(text)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise foreign(path, error) from None
    if not isinstance(manifest, dict):
        raise foreign(path, TypeError(f"a {type(manifest).__name__}, expected an object"))
    return manifest, text


def _check_entry(part: str, entry: dict[str, Any]) -> None:
    """A file inside the folder whose name is one that `_names` gives to the part."""
    file, size, digest = entry["file"], entry["size"], entry["hash"]
    stem, _, rest = part.partition("/" if "/" in part else ".")
    if not FILE.fullmatch(file) or not HASH.fullmatch(digest) or not is_count(size):
        raise ValueError(f"part {part!r}")
    if (file[: len(stem)], file[len(stem) + 12 :]) != (stem, rest):
        raise ValueError(f"part {part!r} is in a file of another")


def is_count(value: object) -> bool:
    """Whether a value of a manifest can be a number of things."""
    return type(value) is int and 0 <= value < 1 << 63


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest with the checksum of all else in it."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return rest | {"checksum": xxhash.xxh3_128_hexdigest(content.encode())}


def text_of(manifest: dict[str, Any]) -> str:
    """What the file of an unharmed manifest says, to the byte."""
    return json.dumps(sealed(manifest), indent=1)


def named(folder: Path) -> set[str]:
    """The files that the manifest in place names; none where there is no such manifest."""
    with suppress(ModelError):
        manifest, text = _parsed(folder / MANIFEST)
        if text == text_of(manifest):
            with suppress(KeyError, TypeError, AttributeError):
                return {str(entry["file"]) for entry in manifest["parts"].values()}
    return set()


def state_of(folder: Path) -> str | None:
    """The checksum that the manifest in place has; None where there is none that can be read."""
    with suppress(ModelError):
        return str(_parsed(folder / MANIFEST)[0].get("checksum"))
    return None


def foreign(path: Path, error: Exception) -> ModelError:
    """What to say of a manifest that is none of ours."""
    return ModelError(f"{path}: not a manifest of mufin ({type(error).__name__}: {error}); train again")


def checked(folder: Path, manifest: dict[str, Any]) -> dict[str, Path]:
    """The file of each part, there and as it was saved, to the last bit."""
    for stray in strays(folder, manifest):
        raise ModelError(f"{stray} is no part of the model, but encoders might read it: move it elsewhere")
    return {part: check_part(folder, entry) for part, entry in manifest["parts"].items()}


def strays(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """Files in the folders of the layout that the manifest does not name."""
    files = {folder / entry["file"] for entry in manifest["parts"].values()}
    tops = {folder / Path(entry["file"]).parts[0] for entry in manifest["parts"].values()} - files
    inside = [path for top in sorted(tops) for path in _files(top)]
    return [path for path in inside if path not in files and not path.name.startswith(".")]


def check_part(folder: Path, entry: dict[str, Any]) -> Path:
    """The file of a part, or a ModelError that says how it differs from what was saved."""
    path = folder / str(entry["file"])
    if not path.is_file():
        raise ModelError(f"{path} is missing; the model is damaged: {AGAIN}")
    size = path.stat().st_size
    if size != entry["size"]:
        raise ModelError(f"{path} has {size} bytes, expected {entry['size']}: {AGAIN}")
    if file_hash(path) != entry["hash"]:
        raise ModelError(f"{path} is not what was saved (its hash differs): {AGAIN}")
    return path


def file_hash(path: Path) -> str:
    """XXH3 of every byte, 128 bits."""
    digest, block = xxhash.xxh3_128(), bytearray(BLOCK)
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(block):
            digest.update(memoryview(block)[:n])
    return digest.hexdigest()


def beside(path: Path) -> Path:
    """A new hidden name in the folder of `path`, for what takes the place of `path` once it is whole.

    Nothing else has this name, so that writing to it and removing it never touches a user's file.
    """
    return path.with_name(f".mufin-{secrets.token_hex(8)}.tmp")
