"""Several processes train the same model as one does, and survive the death of one of them."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from made import made_shop
from mufin import Config, load
from mufin.evaluate.score import evaluate

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("ranks_run.py")
WITHOUT_DROPOUT = ["embed.dropout=0", "pretrain.lr=0.002", "finetune.lr=0.002", "run.checkpoint=0"]
VARIANTS = {
    "votes": ["memory.neighbours=5", "memory.loss=0.5", "rank.beta=learnt", "finetune.chunk=8",
              "text.train_layers=1", "vision.train_layers=1"],
    "paper": ["pretrain.loss=margin", "pretrain.refresh=2", "pretrain.sampled=0", "finetune.loss=cosine",
              "finetune.sampled=0", "finetune.batches=clustered", "finetune.refresh=1"],
}  # fmt: skip


def start(ranks: int, *given: object, restarts: int = 0) -> None:
    """Run `ranks_run.py` in this many processes of one thread."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    done = subprocess.run(
        [*command, str(SCRIPT), *map(str, given)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a catalogue."""
    made_shop(8).write(tmp_path / "shop")
    return tmp_path


def write_config(folder: Path, config: Config, changes: list[str]) -> None:
    config = config.override([*WITHOUT_DROPOUT, *changes])
    text = config.text.model
    plain = folder / "text"
    if not plain.exists():  # the encoder's own dropout is a part of its configuration
        plain.mkdir()
        for path in Path(text).iterdir():
            (plain / path.name).write_bytes(path.read_bytes())
        facts = json.loads((plain / "config.json").read_text())
        facts |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        (plain / "config.json").write_text(json.dumps(facts))
    (folder / "config.toml").write_text(config.override([f"text.model={plain}"]).to_toml(), "utf-8")


def test_gathered_rows_and_gradients_of_three_ranks(tmp_path: Path) -> None:
    start(3, "gather", tmp_path, "done")
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("name", VARIANTS)
def test_two_ranks_take_the_steps_of_one(name: str, folder: Path, tiny_config: Config) -> None:
    write_config(folder, tiny_config, ["pretrain.epochs=6", *VARIANTS[name]])
    runpy.run_path(str(SCRIPT))["train"](folder, "one")
    start(2, "train", folder, "two")
    one, two = (json.loads((folder / f"{each}.json").read_text()) for each in ("one", "two"))
    assert len(one) == len(two) > 20
    np.testing.assert_allclose(two, one, rtol=1e-4)
    catalogue = made_shop(8)
    first, second = (evaluate(load(folder / each), catalogue) for each in ("one", "two"))
    assert first["P@1"] == pytest.approx(second["P@1"], abs=5)
    if name == "votes":  # the job starts again, from the last checkpoint, and ends with the same model
        start(2, "train", folder, "killed", "9", restarts=1)
        assert (folder / "killed.killed").exists()
        whole, killed = ((folder / each / "mufin.json").read_text() for each in ("two", "killed"))
        assert killed == whole  # the manifest has the hash of every part


def test_the_command_for_several_machines(folder: Path, tiny_config: Config) -> None:
    """Of docs/distributed.md, by two launchers on this machine."""
    (folder / "config.toml").write_text(tiny_config.to_toml(), "utf-8")
    page = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    (command,) = re.findall(r"^torchrun --nnodes(?:.*\\\n)*.*", page, re.M)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    changes = {
        "--nnodes 4": "--nnodes 2", "--nproc-per-node 8": "--nproc-per-node 1", "/shared/": f"{folder}/",
        "node0:29500": f"{address} --local-addr 127.0.0.1",
    }  # fmt: skip
    for written, here in changes.items():
        assert written in command
        command = command.replace(written, here)
    words = shlex.split(command.replace("\\\n", " "), comments=True)[1:]
    words += ["--config", str(folder / "config.toml"), "--device", "cpu"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo"}
    with (folder / "log").open("w") as log:
        launcher = [sys.executable, "-m", "torch.distributed.run", *words]
        jobs = [subprocess.Popen(launcher, env=env, stdout=log, stderr=log) for _ in range(2)]
        assert [job.wait(300) for job in jobs] == [0, 0], (folder / "log").read_text("utf-8")
    assert load(folder / "runs" / "shop").recommend("red circle")
