"""Every command and every Python block of the tutorial and of the data formats is run, in order.

A block of JSON after a line that is a path in backticks becomes that file; `sh` runs line by line, `mufin` in
this process and the rest in a shell; `python` runs in one namespace a page. `<!-- not run: why -->` before a
block leaves it out, `<!-- started and stopped by the test -->` starts it, waits for its page and ends it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mufin.cli import app, main

if TYPE_CHECKING:
    from mufin.config import Config

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "tests" / "samples"
BLOCK = re.compile(r"([^\n]*)\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAND_INS = {  # what a reader has downloaded, and the sample that stands for it
    "meta_Office.json.gz": "amazon/meta-2018.json.gz",
    "LF-AmazonTitles-131K": "xc",
    "polyvore_outfits": "polyvore",
    "products.csv": "table/products.csv",
    "photos": "table/photos",
    "saved": "table/saved",
}


class Shell:
    """Runs lines of a page in a folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys

    def __call__(self, code: str) -> str:
        return "".join(self._line(line) for line in code.splitlines())

    def _line(self, line: str) -> str:
        name, *arguments = shlex.split(line)
        if name == "mufin":
            self.capsys.readouterr()
            code = main(arguments)
            out, error = self.capsys.readouterr()
        else:
            done = subprocess.run(
                line, shell=True, cwd=self.folder, capture_output=True, text=True, check=False
            )
            code, out, error = done.returncode, done.stdout, done.stderr
        assert code == 0, f"{line}\n{out}\n{error}"
        return out


def started_and_stopped(code: str, folder: Path) -> None:
    """Start a server, ask for its page, end it; a server that this version does not have is passed over."""

    if "serve" not in {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }:
        return
    port = re.search(r"--port (\d+)", code)
    assert port is not None
    words = code.split()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-m", "mufin", *words[1:]], cwd=folder, env=environment)
    try:
        for _ in range(240):
            time.sleep(0.25)
            assert process.poll() is None, "the server has ended"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/", timeout=5) as page:
                    assert page.status == 200
                    return
            except OSError:
                continue
        raise AssertionError("no page after a minute")
    finally:
        process.terminate()
        process.wait(30)


def run_page(page: Path, folder: Path, shell: Shell) -> list[str]:
    """Run the blocks of a page in a folder; which kinds were run."""
    names: dict[str, Any] = {}
    ran, printed = [], ""
    for before, kind, code in BLOCK.findall(page.read_text("utf-8")):
        if before.startswith("<!-- not run: "):
            continue
        if before == "<!-- started and stopped by the test -->":
            started_and_stopped(code, folder)
        elif kind == "sh":
            printed = shell(code)
        elif kind == "python":
            exec(compile(code, f"{page.name}: {code[:40]!r}", "exec"), names)
        elif (path := re.fullmatch(r"`([\w/.-]+)`", before)) is not None:
            (folder / path[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / path[1]).write_text(code, "utf-8")
        elif (command := re.fullmatch(r"`(mufin [^`]+)` then says:", before)) is not None:
            assert shell(command[1]) == code
        elif (file := re.fullmatch(r"The first lines of `([\w.]+)`:", before)) is not None:
            assert (folder / file[1]).read_text("utf-8").startswith(code)
        else:
            raise AssertionError(f"{page.name}: what is to be done with this block?\n{before}\n{code}")
        ran.append(kind)
    assert printed
    return ran


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shell(folder: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(folder, capsys)


def test_tutorial(folder: Path, shell: Shell) -> None:
    ran = run_page(ROOT / "docs" / "tutorial.md", folder, shell)
    assert (ran.count("sh"), ran.count("python")) == (5, 3)


def test_data_formats(
    folder: Path, shell: Shell, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mufin.config.Config.preset", lambda name: tiny_config)  # quick encoders
    for name, sample in STAND_INS.items():
        source = SAMPLES / sample
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    (folder / "shop" / "images").mkdir(parents=True)
    for name in ("desk", "lamp"):
        shutil.copy(SAMPLES / "table" / "photos" / "red-lamp.png", folder / "shop" / "images" / f"{name}.png")
    shutil.copy(SAMPLES / "table" / "photos" / "red-lamp.png", folder / "desk.png")
    ran = run_page(ROOT / "docs" / "data-formats.md", folder, shell)
    assert ran.count("sh") >= 6
    assert ran.count("python") >= 4
