"""What one expects of a command line: doctor, cache, completion; and of a release: one version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mufin import Mufin, load, save
from mufin.cli import main
from mufin.commands import doctor
from mufin.version import VERSION

ROOT = Path(__file__).resolve().parent.parent


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(arguments) == code
    return capsys.readouterr().out


def test_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--sentence-transformers--all-mpnet-base-v2").mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    facts = json.loads(said(capsys, "doctor", "--json"))
    assert facts["mufin"] == VERSION
    assert facts["problems"] == []
    assert facts["devices"][0] == "cpu"
    assert facts["packages"]["torch"]
    assert facts["extras"]["serve"] is True
    assert facts["cache"]["folder"] == os.environ["MUFIN_CACHE"]
    assert facts["hub"]["models"] == ["sentence-transformers/all-mpnet-base-v2"]
    shown = said(capsys, "doctor")
    assert "No problems found." in shown
    assert "sentence-transformers/all-mpnet-base-v2" in shown


def test_doctor_says_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(doctor, "PACKAGES", (*doctor.PACKAGES, "a-package-that-does-not-exist"))
    monkeypatch.setitem(doctor.EXTRAS, "offline", ("a_module_that_does_not_exist",))
    shown = said(capsys, "doctor", code=1)
    assert "Problem: packages are missing: a-package-that-does-not-exist" in shown
    assert "Problem: torch cannot be imported" in shown
    assert "set MUFIN_CACHE" in shown
    assert 'pip install "mufin[offline]"' in shown


def test_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model: Mufin
) -> None:
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))
    assert json.loads(said(capsys, "cache", "info", "--json"))["bytes"] == 0
    assert said(capsys, "cache", "clear").endswith("cache: 0 bytes freed\n")
    from made import made_shop

    tiny_model.features(made_shop().items, cached=True)
    mine = tmp_path / "cache" / "notes.txt"
    mine.write_text("mine")
    facts = json.loads(said(capsys, "cache", "info", "--json"))
    assert len(facts["encoders"]) == 2
    assert facts["bytes"] == sum(one["bytes"] for one in facts["encoders"]) > 0
    assert facts["encoders"][0]["encoder"] in said(capsys, "cache", "info")
    assert json.loads(said(capsys, "cache", "clear", "--json"))["freed"] == facts["bytes"]
    assert json.loads(said(capsys, "cache", "info", "--json"))["encoders"] == []
    assert [*(tmp_path / "cache").iterdir()] == [mine]
    save(tiny_model, tmp_path / "run")  # models do not need the cache
    assert load(tmp_path / "run").recommend("red circle")


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_completion_completes() -> None:
    mufin = [sys.executable, "-m", "mufin"]
    words = {"_MUFIN_COMPLETE": "complete_bash", "COMP_WORDS": "mufin tra", "COMP_CWORD": "1"}
    assert run(mufin, **words).split() == ["train"]
    words["COMP_WORDS"], words["COMP_CWORD"] = "mufin cache ", "2"
    assert run(mufin, **words).split() == ["info", "clear"]


def test_completion_is_installed_for_the_shell_in_use(tmp_path: Path) -> None:
    shell = ["bash", "-c", f"{sys.executable} -m mufin --install-completion; true"]
    found = run(shell, HOME=str(tmp_path))
    assert "bash completion installed" in found
    assert "mufin" in (tmp_path / ".bash_completions" / "mufin.sh").read_text()
    assert "mufin.sh" in (tmp_path / ".bashrc").read_text()


def test_the_citation_names_the_version() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
