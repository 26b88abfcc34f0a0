"""XR-Linear of PECOS (Yu et al., 2022) on TF-IDF, in its own virtual environment, since it needs NumPy 1."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from mufin import Catalogue
from mufin.encode.cache_folder import cache_folder
from mufin.errors import MufinError
from mufin.evaluate.score import DEPTH
from peers.common import allowed, extra, tfidf, threads

PACKAGES = (["--no-deps", "libpecos==1.2.8"], ["numpy<2", "scipy<1.14", "scikit-learn", "setuptools"])
WORKER = Path(__file__).with_name("xr_linear_worker.py")


def xr_linear(catalogue: Catalogue, seed: int, **settings: Any) -> np.ndarray:
    """A tree of linear rankers over labels clustered by the mean of their training texts (PIFA)."""
    python = _python()
    train, test = catalogue.split("train"), catalogue.split("test")
    points, queries = tfidf(catalogue)
    wanted = settings | {"seed": seed, "k": DEPTH + extra(test.exclude), "threads": threads()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        relation = csr_matrix(train.relevance, dtype=np.float32)
        for name, matrix in (("points", points), ("queries", queries), ("relevance", relation)):
            save_npz(folder / f"{name}.npz", matrix)
        (folder / "settings.json").write_text(json.dumps(wanted))
        _run("training", [str(python), str(WORKER), str(folder)])
        ranked = np.load(folder / "labels.npy")
    return allowed(ranked, test.exclude)


def _python() -> Path:
    """The interpreter of the environment, which is created when first needed.

    PECOS is installed without its dependencies (torch, transformers, …), which XR-Linear does not use.
    """
    folder = cache_folder() / "benchmarks" / "pecos"
    if not (folder / "bin" / "python").exists():
        draft = folder.with_name(f"pecos-{os.getpid()}.tmp")  # a venv can be renamed; only its scripts break
        try:
            _install(draft)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder / "bin" / "python"


def _install(folder: Path) -> None:
    uv, python = shutil.which("uv"), str(folder / "bin" / "python")
    what = "installation"
    _run(what, [uv, "venv", str(folder)] if uv else [sys.executable, "-m", "venv", str(folder)])
    install = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    for packages in PACKAGES:
        _run(what, [*install, "--quiet", "--only-binary", ":all:", *packages])
    _run(what, [python, "-c", "import pecos.xmc.xlinear.model"])


def _run(what: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MufinError(f"the {what} of PECOS failed: {last}")
