"""Generate docs/cli.md from the help of the commands; with --check, only test that it is up to date."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100
HEADER = """\
# The command line

<!-- Made by `make docs` from `src/mufin/cli.py`; do not edit. -->
"""


def commands(command: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """Yield (full name, help text) of a command and of its subcommands, in the order of their definition.

    Uses the click objects behind the app with a fixed width and without rich: the text must depend neither on
    the terminal nor on whether rich is installed.
    """
    command.rich_markup_mode = None
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH)
    lines = command.get_help(context).splitlines()
    yield context.command_path, "\n".join(line.rstrip() for line in lines).strip()
    for sub_name, sub in getattr(command, "commands", {}).items():
        if not sub.hidden:
            yield from commands(sub, sub_name, context)


def render() -> str:
    """Return the page as Markdown."""
    from typer.main import get_command

    from mufin.cli import app

    sections = [
        f"\n## {name}\n\n```text\n{text}\n```\n" for name, text in commands(get_command(app), "mufin")
    ]
    return HEADER + "".join(sections)


def main() -> int:
    """Write or check the page; return 1 if a check finds it out of date."""
    page = render()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print("docs/cli.md is out of date; run `make docs`", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
