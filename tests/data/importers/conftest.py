"""A fixture that the importer tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from mufin.cli import main

Mufin = Callable[..., dict[str, Any]]


@pytest.fixture
def mufin(capsys: pytest.CaptureFixture[str]) -> Mufin:
    """A function that runs a command with `--json` and returns what it prints."""

    def run(*arguments: object, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out or "{}")
        return found

    return run
