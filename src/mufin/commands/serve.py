"""`mufin serve`: serve a model over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mufin.commands import printing
from mufin.commands.options import Exact, Run

if TYPE_CHECKING:
    from mufin.serve.service import Service


def serve(
    run: Run,
    catalogue: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Show the items and relevant labels of this catalogue."),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on; 0 for any free port.")
    ] = 8000,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(metavar="SECRET", envvar="MUFIN_TOKEN", help="Token required to add or remove labels."),
    ] = None,
    log: Annotated[Literal["human", "json"], typer.Option(help="Format of the request log.")] = "human",
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum cost of a batch; a short text costs 1.")
    ] = 32,
    queue: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum total cost of small requests in the queue.")
    ] = 256,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Give up on a request after this time.")
    ] = 10.0,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, help="Batches to compute at a time, each on one core.")
    ] = 1,
    watch: Annotated[
        bool, typer.Option("--watch", help="Reload when RUN, or the folder it links to, changes.")
    ] = False,
    exact: Exact = False,
) -> None:
    """Serve a model over HTTP, with a web page to try it out.

    Open the printed address in a browser; stop the server with Ctrl-C. Labels can be added and removed from
    this machine, and from other machines only with a token. SIGHUP reloads the model.

    \b
    Example:
      mufin serve runs/shop --catalogue shop/
      MUFIN_TOKEN=… mufin serve runs/shop --host 0.0.0.0 --port 80 --log json
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch and faiss start threads
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from mufin.serve.app import build_service, listen
    from mufin.serve.app import run as run_server
    from mufin.serve.metrics import set_up
    from mufin.serve.middleware import is_loopback
    from mufin.serve.schemas import Settings

    local = is_loopback(host)
    settings = Settings(
        batch=batch, queue=queue, deadline=deadline, threads=threads, token=token or None,
        writable=local or bool(token), local=local, watch=watch,
    )  # fmt: skip
    with listen(host, port) as listener:
        set_up(log)
        service = build_service(run, catalogue, settings, exact)
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/"
        run_server(service, listener, lambda: _announce(service, address))


def _announce(service: Service, address: str) -> None:
    """Print the model, the catalogue, who may change labels, and the address."""
    facts = service.facts()
    labels, memory = printing.count(facts["living"], "label"), facts["memory"]
    remembered = f", {printing.count(memory, 'training datapoint')}" if memory else ""
    lines = [f"model      {facts['name']}: {labels}{remembered}"]
    if service.catalogue is not None:
        splits = ", ".join(service.catalogue.splits) or "none"
        lines.append(f"catalogue  {printing.count(len(service.catalogue.items), 'item')}, splits: {splits}")
    writes = "with the token" if facts["needs_token"] else "from this machine" if facts["writable"] else "off"
    lines += [f"writing    {writes}", f"Open       {address}"]
    typer.echo("\n".join(lines))
