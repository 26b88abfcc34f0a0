"""The commands of docs/http.md do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from made import picture
from serving import Process, encoded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_examples_work(
    start: Callable[..., Process], model_folder: Path, served: tuple[Path, Path], tmp_path: Path
) -> None:
    service = start(model_folder, "--catalogue", str(served[1]))
    (tmp_path / "picture.png").write_bytes(encoded(picture("red", "circle")))
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    script = "\n".join(block for block in blocks if "curl" in block)
    assert script.count("curl") >= 15
    script = script.replace("curl -s ", "curl -sS --fail-with-body ")
    env = {**os.environ, "MUFIN": service.address}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-800:] + done.stderr
    for word in (
        '"label":"q-red"',
        '"attention":',
        '"vectors":[[',
        '"added":["zebra"]',
        '"removed":["q-bar"]',
        "mufin_batch_items",
    ):
        assert word in done.stdout, word
    assert (tmp_path / "item.png").read_bytes().startswith(b"\x89PNG")
