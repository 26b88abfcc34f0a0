"""Bytes from outside end in data or a documented error; `benchmarks/reliability/fuzz.py` runs for longer."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FUZZ = ROOT / "benchmarks" / "reliability" / "fuzz.py"
FOUND = sorted((ROOT / "tests" / "samples" / "found").glob("*/*"))
SECONDS = 5  # per parser; two are fuzzed at a time


@pytest.fixture(scope="module")
def parsers() -> Any:
    spec = importlib.util.spec_from_file_location("parsers", FUZZ.with_name("parsers.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["parsers"] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    module.remove_scratch(os.getpid())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_inputs_that_were_found(path: Path, parsers: Any) -> None:
    """Each of these once ended in an exception that nobody documented, or worse."""
    parser = parsers.PARSERS[path.parent.name]
    with suppress(*parser.errors):
        parser.read(path.read_bytes())


def test_seeds_are_read(parsers: Any) -> None:
    """A parser that refuses everything tests nothing."""
    for name, parser in parsers.PARSERS.items():
        good = 0
        for seed in parser.seeds():
            with suppress(*parser.errors):
                parser.read(seed)
                good += 1
        assert good, name


@pytest.mark.skipif(sys.platform != "linux", reason="atheris runs on Linux only")
def test_fuzzing_for_a_minute_finds_nothing(parsers: Any, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(FUZZ), "all", "--seconds", str(SECONDS), "--jobs", "2",
         "--folder", str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("\n| ") == len(parsers.PARSERS), done.stdout
