"""The documents say what the code does: the command line page, the links, the code of the README."""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"")


def cli_docs(name: str):
    return runpy.run_path(str(ROOT / "scripts" / "cli_docs.py"))[name]


def test_the_command_line_page_is_up_to_date():
    page = ROOT / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == cli_docs("render")(), "run `make docs`"


def test_the_page_of_settings_is_up_to_date():
    render = runpy.run_path(str(ROOT / "scripts" / "settings_docs.py"))["render"]
    page = ROOT / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_every_command_shows_an_example():
    from typer.main import get_command

    from mufin.cli import app

    _, *pages = cli_docs("commands")(get_command(app), "mufin")
    assert pages
    lacking = [name for name, text in pages if f"{name} " not in text.replace(f"Usage: {name}", "")]
    assert not lacking, f"no example in the help of {lacking}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [unquote(first or second) for first, second in LINK.findall(prose)]
    files = [t.split("#")[0] for t in targets if not re.match(r"[a-z][a-z0-9+.-]*:|#", t)]
    dead = [file for file in files if not (page.parent / file).exists()]
    assert not dead


def test_python_of_the_readme_compiles():
    blocks = [code for kind, code in FENCE.findall(README.read_text(encoding="utf-8")) if kind == "python"]
    assert blocks
    for code in blocks:
        source = doctest.script_from_examples(code) if code.lstrip().startswith(">>>") else code
        compile(source, str(README), "exec")
