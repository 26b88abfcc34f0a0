"""Run: load, listen, and end cleanly."""

from __future__ import annotations

from pathlib import Path

import torch
import uvicorn

from mufin.data.catalogue import Catalogue
from mufin.serve.app import build_app
from mufin.serve.limits import Settings
from mufin.serve.service import Service
from mufin.store import load


def build_service(folder: Path, catalogue: Path | None, settings: Settings) -> Service:
    """The service of a model folder."""
    pin_threads(settings.threads)
    shelf = None if catalogue is None else Catalogue.read(catalogue)
    return Service(load(folder, "cpu"), folder, shelf, settings)


def pin_threads(threads: int) -> None:
    """Keep torch and faiss to so many threads: one query that wakes all cores is slower, not faster."""
    import faiss

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def run(service: Service, host: str, port: int) -> None:
    """Answer requests until a signal comes."""
    config = uvicorn.Config(
        build_app(service), host=host, port=port, log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=15,
    )  # fmt: skip
    uvicorn.Server(config).run()
