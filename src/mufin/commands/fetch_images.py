"""`mufin fetch-images`: download the images of a catalogue."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Folder, Json, Quiet


def fetch_images(
    folder: Folder,
    workers: Annotated[int, typer.Option(metavar="N", help="Downloads at a time.")] = 32,
    per_host: Annotated[int, typer.Option(metavar="N", help="Downloads at a time from one host.")] = 8,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Per try, redirects included.")] = 30.0,
    retries: Annotated[int, typer.Option(metavar="N", help="Further tries after a passing failure.")] = 3,
    max_mb: Annotated[float, typer.Option(metavar="MB", help="A bigger picture is given up.")] = 20.0,
    per_item: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first pictures of an item.")
    ] = None,
    robots: Annotated[bool, typer.Option("--robots", help="Ask each host's robots.txt first.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also try again what failed for good.")
    ] = False,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Allow addresses inside your own network.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download the pictures that a catalogue names by address.

    Files go to images/ under the name of their content. It may be stopped and started again: what is there is
    not fetched twice. What failed is in _failed.jsonl of the folder.

    \b
    Example:
      mufin fetch-images office/ --per-host 4 --robots
    """
    started = time.monotonic()
    from mufin.data.download.addresses import Settings
    from mufin.data.download.catalogue import fetch_folder
    from mufin.progress import Progress

    settings = Settings(
        workers=workers, per_host=per_host, timeout=timeout, retries=retries, max_bytes=int(max_mb * 1e6),
        robots=robots, allow_private=allow_private,
    )  # fmt: skip
    done = fetch_folder(folder, settings, per_item, retry_failed, Progress(quiet or json))
    seconds = time.monotonic() - started
    if json:
        printing.show_json({**done.to_json(), "seconds": round(seconds, 3)})
        return
    for line in done.lines():
        typer.echo(line)
    typer.echo(f"{done.fetched:,} pictures fetched in {printing.duration(seconds)}, {done.kept:,} were there")
