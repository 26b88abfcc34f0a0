"""Serving a model over HTTP: serve."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mufin.commands.options import Exact, Run

if TYPE_CHECKING:
    from mufin.serve.service import Service


def serve(
    run: Run,
    catalogue: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Show the items and the truth of this catalogue.")
    ] = None,
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any free port.")] = 8000,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(metavar="SECRET", envvar="MUFIN_TOKEN", help="Whoever writes must know it.")
    ] = None,
    log: Annotated[Literal["human", "json"], typer.Option(help="How requests are logged.")] = "human",
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Short texts, or their cost, per forward pass.")
    ] = 32,
    queue: Annotated[
        int, typer.Option(metavar="N", min=1, help="Short texts, or their cost, that may wait.")
    ] = 256,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="After which a request is given up.")
    ] = 10.0,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches computed at a time, each on one core.")
    ] = 1,
    exact: Exact = False,
) -> None:
    """Serve a model over HTTP, with a page to try it.

    Open the address that it prints in a browser; Ctrl-C ends it. Labels can be added and removed from this
    machine, from others only with a token.

    \b
    Example:
      mufin serve runs/shop --catalogue shop/
      MUFIN_TOKEN=… mufin serve runs/shop --host 0.0.0.0 --port 80 --log json
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and faiss start any
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from mufin.serve.app import build_service, listen
    from mufin.serve.app import run as answer
    from mufin.serve.metrics import set_up
    from mufin.serve.middleware import is_loopback
    from mufin.serve.schemas import Settings

    local = is_loopback(host)
    settings = Settings(
        batch=batch, queue=queue, deadline=deadline, threads=threads, token=token or None,
        writable=local or bool(token), local=local,
    )  # fmt: skip
    with listen(host, port) as listener:
        set_up(log)
        service = build_service(run, catalogue, settings, exact)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        answer(service, listener, lambda: _say(service, address))


def _say(service: Service, address: str) -> None:
    facts = service.facts()
    remembered = f", {facts['memory']:,} training points" if facts["memory"] else ""
    lines = [f"model      {facts['name']}: {facts['living']:,} labels{remembered}"]
    if service.catalogue is not None:
        splits = ", ".join(service.catalogue.splits) or "none"
        lines.append(f"catalogue  {len(service.catalogue.items):,} items, splits: {splits}")
    writes = "with the token" if facts["needs_token"] else "from this machine" if facts["writable"] else "off"
    lines += [f"writing    {writes}", f"Open       {address}"]
    typer.echo("\n".join(lines))
