"""`mufin fetch-images`: download the images of a catalogue."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from mufin.commands import printing
from mufin.commands.options import Folder, Json, Quiet


def fetch_images(
    folder: Folder,
    workers: Annotated[int, typer.Option(metavar="N", help="Concurrent downloads.")] = 32,
    per_host: Annotated[int, typer.Option(metavar="N", help="Concurrent downloads per host.")] = 8,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time limit per attempt, including redirects.")
    ] = 30.0,
    retries: Annotated[int, typer.Option(metavar="N", help="Retries after a temporary failure.")] = 3,
    max_mb: Annotated[float, typer.Option(metavar="MB", help="Skip images larger than this.")] = 20.0,
    per_item: Annotated[
        int | None, typer.Option(metavar="N", help="Download only the first N images per item.")
    ] = None,
    robots: Annotated[bool, typer.Option("--robots", help="Obey each host's robots.txt.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also retry images that failed permanently.")
    ] = False,
    allow_private: Annotated[
        bool, typer.Option("--allow-private", help="Allow addresses in private networks.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download the images that a catalogue lists as URLs.

    Files are saved in images/, named by a hash of their content. An interrupted download can be resumed:
    images that are already there are not downloaded again. _failed.jsonl in the folder lists the failures.

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
    images, took = printing.count(done.fetched, "image"), printing.duration(seconds)
    typer.echo(f"Downloaded {images} in {took}; {done.kept:,} already there")
