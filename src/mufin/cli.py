"""The command line: register the commands, and report errors as one line and an exit code.

Exit codes: 0 success, 1 unusable folder (`check`), 2 wrong usage or error, 130 stopped by Ctrl-C, 143 by
SIGTERM (`train`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mufin.commands import (
    cache,
    check,
    compare,
    config,
    doctor,
    evaluate,
    export,
    fetch_images,
    import_,
    info,
    labels,
    predict,
    push,
    recommend,
    serve,
    train,
)
from mufin.errors import MufinError
from mufin.version import VERSION

app = typer.Typer(
    help="Multi-modal extreme classification: rank millions of labels for items made of text and images.",
    epilog="Start with `mufin demo`, or with `mufin check FOLDER` on your own catalogue.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    train.demo, check.check, config.config, train.train,
    evaluate.evaluate, compare.compare, predict.predict, recommend.recommend, predict.embed,
    info.info, labels.add_labels, labels.remove_labels, export.export, push.push,
    serve.serve, doctor.doctor,
):  # fmt: skip
    app.command()(command)
app.add_typer(import_.importing, name="import")
app.add_typer(cache.caching, name="cache")
app.command()(fetch_images.fetch_images)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"mufin {VERSION}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `MUFIN_DEBUG=1` raises errors with their traceback."""
    # Silence the advice and the progress bars of libraries; mufin shows its own.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(arguments or ["--help"], prog_name="mufin", standalone_mode=False)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more
        return 0
    except Exception as error:
        if os.environ.get("MUFIN_DEBUG", "0") not in ("", "0"):
            raise
        typer.secho(f"mufin: {_one_line(error)}", err=True, fg="red")
        return 2
    if code == 130:  # typer's exit code for Ctrl-C
        typer.echo("mufin: stopped", err=True)
    return code if isinstance(code, int) else 0


def _out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out; torch raises a RuntimeError."""
    says = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError) or any(text in str(error) for text in says)


def _one_line(error: Exception) -> str:
    """Describe an error on one line."""
    format_message = getattr(error, "format_message", None)  # typer's own errors
    if isinstance(error, MufinError):
        text = str(error)
    elif format_message is not None:
        text = f"{format_message()} See: {_command(error)} --help"
    elif _out_of_memory(error):
        text = "out of memory; try a smaller batch"
    elif isinstance(error, OSError):
        text = f"{error.filename or 'input or output'}: {error.strerror or error}"
    else:
        text = f"{type(error).__name__}: {error} (this is a bug; MUFIN_DEBUG=1 shows the traceback)"
    return " ".join(text.split())


def _command(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return "mufin" if context is None else str(context.command_path)


if __name__ == "__main__":
    sys.exit(main())
