"""What comes from elsewhere: pinned by hash, listed with its licence, and silent at run time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCK = (ROOT / "constraints.txt").read_text()
# Fails on any attempt to look up a name or to connect to anything but a local socket.
NO_NETWORK = """
import socket, sys
def refuse(event, args):
    if event in ("socket.getaddrinfo", "socket.connect", "socket.sendto"):
        raise SystemExit(f"{event} {args[1:] if event != 'socket.getaddrinfo' else args}")
sys.addaudithook(refuse)
"""


def test_every_version_has_hashes() -> None:
    entries = re.findall(r"^[a-z0-9.-]+==.*\n(?:    --hash=sha256:[0-9a-f]{64}.*\n)+", LOCK, re.M)
    assert len(entries) == len(re.findall(r"^[^#\s]", LOCK, re.M)) > 100
    for name in ("torch", "transformers", "faiss-cpu", "uv", "hatchling", "setuptools", "editables"):
        assert re.search(rf"^{name}==", LOCK, re.M), name


@pytest.mark.parametrize("script", ["pins.py", "licences.py"])
def test_what_scripts_make_is_current(script: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_a_bill_of_materials(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", str(tmp_path), str(ROOT)]
    subprocess.run(command, capture_output=True, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/sboms/sbom.cdx.json"))
        found = json.loads(wheel.read(name))
    assert found["bomFormat"] == "CycloneDX"
    listed = {part["name"]: part for part in found["components"]}
    assert listed["torch"]["purl"].startswith("pkg:pypi/torch@")
    refs = {part["bom-ref"] for part in found["components"] if "bom-ref" in part}
    refs.add(found["metadata"]["component"]["bom-ref"])
    for row in found["dependencies"]:
        assert {row["ref"], *row["dependsOn"]} <= refs


def test_packaged_encoders_and_saved_models_never_ask_a_hub(tmp_path: Path) -> None:
    """With the variables unset that make the other tests offline."""
    code = """
from mufin import Catalogue, Config, Item, fit, load
items = [Item(f"{c}{n}", [f"{c} {n}"]) for c in ("red", "blue") for n in range(6)]
labels = [Item(c, [c]) for c in ("red", "blue")]
train = {item.id: [item.id.rstrip("0123456789")] for item in items}
config = Config.parse({
    "text": {"model": "offline", "train_layers": 0}, "vision": {"model": "offline", "train_layers": 0},
    "embed": {"dim": 16}, "pretrain": {"epochs": 1}, "finetune": {"epochs": 1},
}, "tiny")
fit(Catalogue.build(items, labels, train=train), config, "model", quiet=True)
print(load("model").recommend([Item("q", ["red"])])[0][0].label)
from huggingface_hub import constants
assert constants.HF_HUB_DISABLE_TELEMETRY
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    env |= {"MUFIN_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", NO_NETWORK + code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
