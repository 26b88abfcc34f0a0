"""The command line: joins the commands, and turns errors into one sentence and an exit code.

0 fine, 1 the data is not good (`check`), 2 wrong use or a failed run, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mufin.commands import (
    check,
    compare,
    config,
    evaluate,
    fetch_images,
    import_,
    info,
    labels,
    predict,
    recommend,
    serve,
    train,
)
from mufin.errors import MufinError
from mufin.version import VERSION

app = typer.Typer(
    help="Multi-modal extreme classification: rank millions of labels for items made of texts and pictures.",
    epilog="Start with `mufin demo`, or with `mufin check FOLDER` on a catalogue of your own.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    train.demo, check.check, config.config, train.train,
    evaluate.evaluate, compare.compare, predict.predict, recommend.recommend, predict.embed,
    info.info, labels.add_labels, labels.remove_labels,
    serve.serve,
):  # fmt: skip
    app.command()(command)
app.add_typer(import_.importing, name="import")
app.command()(fetch_images.fetch_images)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mufin {VERSION}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `MUFIN_DEBUG=1` shows where an error comes from."""
    # Libraries below us have bars and advice of their own; ours are enough.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(arguments or ["--help"], prog_name="mufin", standalone_mode=False)
    except Exception as error:
        if os.environ.get("MUFIN_DEBUG", "0") not in ("", "0"):
            raise
        typer.secho(f"mufin: {_sentence(error)}", err=True, fg="red")
        return 2
    if code == 130:  # typer's answer to Ctrl-C
        typer.echo("mufin: stopped", err=True)
    return code if isinstance(code, int) else 0


def _sentence(error: Exception) -> str:
    """What went wrong, on one line."""
    format_message = getattr(error, "format_message", None)  # typer's own errors
    if isinstance(error, MufinError):
        text = str(error)
    elif format_message is not None:
        text = f"{format_message()} See: {_command(error)} --help"
    elif isinstance(error, MemoryError):
        text = "not enough memory; try a smaller batch"
    elif isinstance(error, OSError):
        text = f"{error.filename or 'input or output'}: {error.strerror or error}"
    else:
        text = f"{type(error).__name__}: {error} (this should not happen; MUFIN_DEBUG=1 shows where it does)"
    return " ".join(text.split())


def _command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "mufin" if context is None else str(context.command_path)


if __name__ == "__main__":
    sys.exit(main())
