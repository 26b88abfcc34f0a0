"""Serving a model: serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mufin.commands.options import Run


def serve(
    run: Run,
    catalogue: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Show the items and truth of this catalogue.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Where to listen.")] = 8000,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="On which address.")] = "127.0.0.1",
) -> None:
    """Serve a model over HTTP, with a page to try it.

    \b
    Example:
      mufin serve runs/shop --catalogue shop/
    """
    from mufin.serve.limits import Settings
    from mufin.serve.run import build_service, run as run_service

    run_service(build_service(run, catalogue, Settings()), host, port)
