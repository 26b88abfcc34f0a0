"""Run every command and every Python block of the pages named below, in order.

A JSON block after a line with a path in backticks becomes that file. `sh` blocks run line by line: `mufin` in
this process, the rest in a shell. `python` blocks share one namespace per page. A block is skipped after
`<!-- not run: reason -->`; after `<!-- started and stopped by the test -->` it is a server to start and stop.
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

from mufin import fit
from mufin.cli import main

if TYPE_CHECKING:
    from mufin import Catalogue, Config

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "tests" / "samples"
BLOCK = re.compile(r"([^\n]*)\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAMPLE_OF = {  # file or folder named on the page → sample that replaces it
    "meta_Office.json.gz": "amazon/meta-2018.json.gz",
    "LF-AmazonTitles-131K": "xc",
    "polyvore_outfits": "polyvore",
    "products.csv": "table/products.csv",
    "photos": "table/photos",
    "saved": "table/saved",
}


class Shell:
    """Run lines of a page in a folder and return what they print."""

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
    """Start a server, request its page, stop it."""
    port = re.search(r"--port (\d+)", code)
    assert port is not None
    words = code.split()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen([sys.executable, "-m", "mufin", *words[1:]], cwd=folder, env=environment)
    try:
        for _ in range(240):
            time.sleep(0.25)
            assert process.poll() is None, f"exit code {process.returncode}: {code}"
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
    """Run the blocks of a page in a folder; return the kinds of those that ran."""
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
            raise AssertionError(f"{page.name}: unknown kind of block\n{before}\n{code}")
        ran.append(kind)
    assert printed or "sh" not in ran
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
    monkeypatch.setattr("mufin.config.Config.preset", lambda name: tiny_config)  # fast encoders
    for name, sample in SAMPLE_OF.items():
        source = SAMPLES / sample
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    (folder / "shop" / "images").mkdir(parents=True)
    for name in ("desk", "lamp"):
        shutil.copy(SAMPLES / "table" / "photos" / "red-lamp.png", folder / "shop" / "images" / f"{name}.png")
    shutil.copy(SAMPLES / "table" / "photos" / "red-lamp.png", folder / "desk.png")
    ran = run_page(ROOT / "docs" / "data-formats.md", folder, shell)
    assert ran.count("sh") >= 6
    assert ran.count("python") >= 4


def test_python(folder: Path, shell: Shell, tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mufin.config.Config.preset", lambda name: tiny_config)  # fast encoders
    tutorial = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    exec(next(code for _, kind, code in BLOCK.findall(tutorial) if kind == "python"), {})  # its table
    assert run_page(ROOT / "docs" / "how-to" / "python.md", folder, shell).count("python") == 7


@pytest.fixture(scope="module")
def small_shop(tmp_path_factory: pytest.TempPathFactory, shop: Catalogue, tiny_config: Config) -> Path:
    """A folder with the catalogue `shop`, and its model as `runs/shop` and `runs/demo`."""
    folder = tmp_path_factory.mktemp("small")
    shop.write(folder / "shop")
    fit(shop, tiny_config.override(["memory.neighbours=5"]), folder / "runs" / "shop", quiet=True)
    shutil.copytree(folder / "runs" / "shop", folder / "runs" / "demo")
    return folder


@pytest.mark.parametrize(
    ("page", "blocks"),
    [
        ("quick-start", ["sh", "python", "sh"]),
        ("how-to/scores", ["python"] * 4),
        ("how-to/live-labels", ["python", "python", "json", "sh"]),
        ("how-to/imbalance", ["sh", "python"]),
        ("how-to/encoders", ["sh", "python", "sh"]),
        ("how-to/deploy", ["sh", "sh"]),
    ],
)
def test_pages_about_a_trained_shop(
    page: str, blocks: list[str], folder: Path, shell: Shell, small_shop: Path
) -> None:
    shutil.copytree(small_shop, folder, dirs_exist_ok=True)
    assert run_page(ROOT / "docs" / f"{page}.md", folder, shell) == blocks


def test_retrieval_on_milvus(folder: Path, shell: Shell, small_shop: Path) -> None:
    pytest.importorskip("milvus_lite", reason="needs the extra milvus")
    shutil.copytree(small_shop, folder, dirs_exist_ok=True)
    page = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    section = page[page.index("## Retrieval on Milvus") :].split("\n## ")[0]
    (folder / "milvus.md").write_text(section, "utf-8")
    assert run_page(folder / "milvus.md", folder, shell) == ["sh", "sh", "python"]


@pytest.mark.parametrize("page", ["reliability", "distributed"])
def test_commands_of_measured_figures_exist(page: str) -> None:
    """Their files, tests and options."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    commands = [shlex.split(one) for one in re.findall(r"`((?:python|pytest) [^`]+)`", text)]
    assert commands
    for program, path, *options in commands:
        source = (ROOT / path).read_text("utf-8")
        if program == "pytest" and options:
            assert options[0] == "-k", options
            assert re.search(rf"def test_\w*{options[1]}", source), (path, options)
        for option in options:
            assert not option.startswith("--") or f'"{option}"' in source, (path, option)
