"""Crash-safe model folders: files are named by content hash, and the manifest is replaced last."""

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
STAGING_PREFIX = ".mufin-saving-"
RECORD_NAME = "record.json"  # in a staging folder: files that an interrupted save may leave behind
HASH_BLOCK_BYTES = 4 << 20
MAX_MANIFEST_BYTES = 4 << 20
FILE_NAME = re.compile(r"[a-z]+-[0-9a-f]{10}(\.[a-z]+|(/[^./\\:\x00-\x1f][^/\\:\x00-\x1f]*)+)")
HEX_HASH = re.compile(r"[0-9a-f]{32}")
RECOVERY_HINT = "copy the folder again or train again"


# -- write ---------------------------------------------------------------------------------------------------


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """Create a staging folder inside `folder` for new parts; the caller must hold the lock."""
    for leftover in folder.glob(f"{STAGING_PREFIX}*"):
        if (leftover / RECORD_NAME).is_file():  # its writer is dead, since we hold the lock
            _discard(leftover, folder)
    path = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=folder))
    try:
        (path / RECORD_NAME).write_text("[]", "utf-8")
        yield path
    finally:
        _discard(path, folder)


def install(
    staged: Path, folder: Path, facts: dict[str, Any], unchanged: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Move every staged part into the folder, then replace the manifest; return the new manifest.

    `unchanged` holds the manifest entries of parts that stay in the folder.
    """
    parts = {
        path.relative_to(staged).as_posix(): path for path in _files(staged) if path != staged / RECORD_NAME
    }
    hashes = {part: file_hash(path) for part, path in parts.items()}
    names = _file_names(hashes)
    entries = {
        part: {"file": names[part], "size": path.stat().st_size, "hash": hashes[part]}
        for part, path in parts.items()
    }
    listed = dict(sorted({**(unchanged or {}), **entries}.items()))
    manifest = with_checksum(facts | {"parts": listed})
    may_remain = manifest_files(folder) | {entry["file"] for entry in listed.values()}
    _write(staged / RECORD_NAME, json.dumps(sorted(may_remain)))
    for part, path in parts.items():
        _move(path, folder, folder / names[part], hashes[part])
    _write(staged / MANIFEST, manifest_text(manifest))
    (staged / MANIFEST).replace(folder / MANIFEST)
    return manifest


def _file_names(hashes: dict[str, str]) -> dict[str, str]:
    """Name each part by its content, so that no file of an earlier save is ever overwritten.

    Layout files keep their names, which the libraries that read them expect; only their folder is renamed.
    """
    listing = "".join(f"{part} {digest}\n" for part, digest in sorted(hashes.items()) if "/" in part)
    layout = xxhash.xxh3_128_hexdigest(listing.encode())[:10]
    names = {}
    for part, digest in hashes.items():
        stem, _, rest = part.partition("/" if "/" in part else ".")
        names[part] = f"{stem}-{layout}/{rest}" if "/" in part else f"{stem}-{digest[:10]}.{rest}"
    return names


def _move(path: Path, folder: Path, target: Path, digest: str) -> None:
    """Move a staged part into the folder unless an identical file is already there."""
    for parent in [*target.parents][: len(target.relative_to(folder).parts) - 1]:
        if parent.is_symlink():
            raise ModelError(f"{parent} is a link, which may lead out of the folder: remove it")
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
    """Remove a staging folder and the files it recorded that the current manifest does not list."""
    needed = manifest_files(folder)
    if needed or not (folder / MANIFEST).exists():  # a damaged manifest does not say what to keep
        for name in _read_record(staged) - needed:
            _remove(folder, name)
    shutil.rmtree(staged, ignore_errors=True)


def _read_record(staged: Path) -> set[str]:
    try:
        return {
            name
            for name in json.loads((staged / RECORD_NAME).read_text("utf-8"))
            if FILE_NAME.fullmatch(name)
        }
    except (OSError, ValueError, TypeError, RecursionError):
        return set()  # its writer was killed before moving any file


def _remove(folder: Path, name: str) -> None:
    """Remove a part and the folders it leaves empty, without following links."""
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
    """Read and validate the manifest of a model folder: this format version, with at least these parts."""
    path = folder / MANIFEST
    if not path.is_file():
        what = "is not a model folder (it has no mufin.json)" if folder.is_dir() else "does not exist"
        raise ModelError(f"{folder} {what}; train one with: mufin train CATALOGUE -o {folder}")
    manifest, text = _parse(path)
    found = manifest.get("mufin")
    if isinstance(found, bool) or not isinstance(found, int) or found > version:
        raise ModelError(f"{path}: format {found!r:.20}, this version reads {version}; update mufin")
    if found < version:
        raise ModelError(
            f"{path}: format {found} was written by an older mufin and is no longer supported; train again"
        )
    if text != manifest_text(manifest):
        raise ModelError(f"{path} has changed since it was saved (checksum mismatch): {RECOVERY_HINT}")
    try:
        for part, entry in manifest["parts"].items():
            _check_entry(part, entry)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid_manifest(path, error) from None
    if missing := set(parts) - set(manifest["parts"]):
        raise ModelError(f"{path} does not list {', '.join(sorted(missing))}: {RECOVERY_HINT}")
    return manifest


def _parse(path: Path) -> tuple[dict[str, Any], str]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_MANIFEST_BYTES).decode()
        manifest = json.loads(text)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError) as error:
        raise invalid_manifest(path, error) from None
    if not isinstance(manifest, dict):
        raise invalid_manifest(path, TypeError(f"a {type(manifest).__name__}, expected an object"))
    return manifest, text


def _check_entry(part: str, entry: dict[str, Any]) -> None:
    """Check a part's entry: a valid size, hash and file name, as `_file_names` makes them."""
    file, size, digest = entry["file"], entry["size"], entry["hash"]
    stem, _, rest = part.partition("/" if "/" in part else ".")
    if not FILE_NAME.fullmatch(file) or not HEX_HASH.fullmatch(digest) or not is_count(size):
        raise ValueError(f"part {part!r}")
    if (file[: len(stem)], file[len(stem) + 12 :]) != (stem, rest):
        raise ValueError(f"part {part!r} has the file name of another part")


def is_count(value: object) -> bool:
    """Whether a manifest value is a valid count."""
    return type(value) is int and 0 <= value < 1 << 63


def with_checksum(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest with a checksum of its other values."""
    rest = {key: value for key, value in manifest.items() if key != "checksum"}
    content = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return rest | {"checksum": xxhash.xxh3_128_hexdigest(content.encode())}


def manifest_text(manifest: dict[str, Any]) -> str:
    """Return the exact text of a valid manifest file."""
    return json.dumps(with_checksum(manifest), indent=1)


def manifest_files(folder: Path) -> set[str]:
    """Return the files that the current manifest lists; empty without a valid manifest."""
    with suppress(ModelError):
        manifest, text = _parse(folder / MANIFEST)
        if text == manifest_text(manifest):
            with suppress(KeyError, TypeError, AttributeError):
                return {str(entry["file"]) for entry in manifest["parts"].values()}
    return set()


def saved_checksum(folder: Path) -> str | None:
    """Return the checksum stored in the current manifest; None if it cannot be read."""
    with suppress(ModelError):
        return str(_parse(folder / MANIFEST)[0].get("checksum"))
    return None


def invalid_manifest(path: Path, error: Exception) -> ModelError:
    """Return the error for a file that is not a mufin manifest."""
    return ModelError(f"{path}: not a mufin manifest ({type(error).__name__}: {error}); train again")


def check_parts(folder: Path, manifest: dict[str, Any]) -> dict[str, Path]:
    """Verify every part and return its file."""
    for stray in strays(folder, manifest):
        raise ModelError(f"{stray} is not part of the model, but encoders might read it: move it elsewhere")
    return {part: check_part(folder, entry) for part, entry in manifest["parts"].items()}


def strays(folder: Path, manifest: dict[str, Any]) -> list[Path]:
    """Return files in the layout folders that the manifest does not list."""
    files = {folder / entry["file"] for entry in manifest["parts"].values()}
    layouts = {folder / Path(entry["file"]).parts[0] for entry in manifest["parts"].values()} - files
    inside = [path for layout_folder in sorted(layouts) for path in _files(layout_folder)]
    return [path for path in inside if path not in files and not path.name.startswith(".")]


def check_part(folder: Path, entry: dict[str, Any]) -> Path:
    """Verify the size and hash of a part and return its file."""
    path = folder / str(entry["file"])
    if not path.is_file():
        raise ModelError(f"{path} is missing: {RECOVERY_HINT}")
    size = path.stat().st_size
    if size != entry["size"]:
        raise ModelError(f"{path} has {size} bytes, expected {entry['size']}: {RECOVERY_HINT}")
    if file_hash(path) != entry["hash"]:
        raise ModelError(f"{path} has changed since it was saved (hash mismatch): {RECOVERY_HINT}")
    return path


def file_hash(path: Path) -> str:
    """Return the 128-bit XXH3 hash of a file."""
    digest, block = xxhash.xxh3_128(), bytearray(HASH_BLOCK_BYTES)
    with path.open("rb", buffering=0) as file:
        while n := file.readinto(block):
            digest.update(memoryview(block)[:n])
    return digest.hexdigest()


def temporary_path(path: Path) -> Path:
    """Return a unique hidden name next to `path`, for a file that replaces `path` once it is complete.

    Nothing else has this name, so writing or removing it never touches a user's file.
    """
    return path.with_name(f".mufin-{secrets.token_hex(8)}.tmp")
