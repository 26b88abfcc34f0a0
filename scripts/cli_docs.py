"""Write docs/cli.md from the commands' own help; with --check, only say whether it is up to date."""

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
    """Yield (full name, help text) of a command and of all below it, in the order of their definition.

    Works on the click objects behind the app, with the width fixed and rich's boxes off: the text depends
    neither on the terminal nor on whether rich is installed.
    """
    command.rich_markup_mode = None
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=WIDTH)
    lines = command.get_help(context).splitlines()
    yield context.command_path, "\n".join(line.rstrip() for line in lines).strip()
    for sub_name, sub in getattr(command, "commands", {}).items():
        if not sub.hidden:
            yield from commands(sub, sub_name, context)


def render() -> str:
    """The whole page."""
    from typer.main import get_command

    from mufin.cli import app

    sections = [
        f"\n## {name}\n\n```text\n{text}\n```\n" for name, text in commands(get_command(app), "mufin")
    ]
    return HEADER + "".join(sections)


def main() -> int:
    """Write or check the page; 1 where a check finds it out of date."""
    page = render()
    if "--check" in sys.argv[1:]:
        if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print("docs/cli.md is not what the commands say of themselves; run `make docs`", file=sys.stderr)
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
