"""`mufin push`: upload a model to the Hugging Face Hub."""

from __future__ import annotations

from typing import Annotated

import typer

from mufin.commands.options import Run


def push(
    run: Run,
    repository: Annotated[str, typer.Argument(metavar="USER/MODEL", help="Repository on the hub.")],
    revision: Annotated[str | None, typer.Option(metavar="BRANCH", help="Branch to upload to.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
) -> None:
    """Upload a model to the Hugging Face Hub.

    Sends the files of the model and its card, README.md. `load("user/model")` downloads it. Log in with
    `hf auth login` first, or set HF_TOKEN.

    \b
    Example:
      mufin push runs/shop user/shop
    """
    from mufin.model.hub import push_to_hub

    typer.echo(push_to_hub(run, repository, revision, private))
