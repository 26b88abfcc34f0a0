"""Whatever goes wrong around a training ends in a clear error or a warning, and the training can go on."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made import made_shop
from mufin import Config, fit
from mufin.cli import main
from mufin.data import loading
from mufin.encode.cache import FeatureCache
from mufin.encode.text import TextEncoder
from mufin.errors import ModelError
from mufin.model import store
from mufin.train import assemble, checkpoint, finetune
from mufin.train import fit as fitting
from mufin.train.epochs import Epochs
from mufin.train.loop import Event

ROOT = Path(__file__).resolve().parents[2]
OWNERS: dict[str, tuple[Any, str]] = {  # what is stopped in each stage
    "planning": (TextEncoder, "prepare"),
    "encoding": (FeatureCache, "_store"),
    "training": (Epochs, "_step"),
    "shortlists": (fitting, "retrieve"),
    "assembling": (assemble, "embed_all"),
    "saving": (store, "write_network"),
}


def content(run: Path) -> dict[str, Any]:
    """All that a model folder holds: the manifest has the hash of every part."""
    return json.loads((run / "mufin.json").read_text())


def before(
    owner: Any, name: str, happens: Callable[[], Any], patch: pytest.MonkeyPatch, call: int = 1
) -> None:
    """Let something happen before a call of a function."""
    real, calls = getattr(owner, name), [call]

    def disturbed(*given: Any, **named: Any) -> Any:
        calls[0] -= 1
        if not calls[0]:
            happens()
        return real(*given, **named)

    patch.setattr(owner, name, disturbed)


@pytest.fixture(scope="module")
def whole(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed training."""
    run = tmp_path_factory.mktemp("whole")
    fit(made_shop(2), tiny_config, run, quiet=True)
    return run


@pytest.fixture
def command(tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`mufin train` of the same model, with an empty cache."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets background jobs ignore it
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))
    made_shop(2).write(tmp_path / "shop")
    (tmp_path / "tiny.toml").write_text(tiny_config.to_toml(), "utf-8")
    config = ["--config", str(tmp_path / "tiny.toml"), "-q"]
    return ["train", str(tmp_path / "shop"), "-o", str(tmp_path / "run"), *config]


@pytest.mark.parametrize("stage", OWNERS)
def test_a_signal_in_any_stage(
    stage: str, command: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    for sent, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with pytest.MonkeyPatch.context() as patch:
            before(*OWNERS[stage], lambda sent=sent: os.kill(os.getpid(), sent), patch)
            try:
                ended = main([*command, "--resume"])
            except SystemExit as stopped:
                ended = int(str(stopped.code))
        assert ended == code
        assert "run the same command with --resume" in capsys.readouterr().err
        left = [path.name for path in run.rglob("*")] if run.exists() else []
        assert not [name for name in left if name.startswith((".writing-", ".mufin-saving-"))]
    assert main([*command, "--resume"]) == 0
    assert content(run) == content(whole)


def test_out_of_memory(
    command: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def allocate() -> None:
        import torch

        torch.zeros(1 << 60, dtype=torch.uint8)

    with pytest.MonkeyPatch.context() as patch:
        before(Epochs, "_step", allocate, patch, call=3)
        assert main([*command, "--set", "run.checkpoint=0"]) == 2
    said = capsys.readouterr().err
    assert "out of memory" in said
    assert "--resume" in said
    assert main([*command, "--resume"]) == 0
    assert content(tmp_path / "run") == content(whole)


def test_a_process_whose_memory_is_limited(command: list[str], whole: Path, tmp_path: Path) -> None:
    code = """
import resource, sys
from mufin import Catalogue, Config, fit
held = []
def take_all(event):
    if event.module == "finetune" and not held:
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), -1))
        for piece in (1 << 20, 1 << 12, 64):
            try:
                while True:
                    held.append(bytearray(piece))
            except MemoryError:
                pass
config = Config.read(sys.argv[2])
fit(Catalogue.read(sys.argv[1]), config, sys.argv[3], quiet=True, callbacks=[take_all])
"""
    paths = [str(tmp_path / name) for name in ("shop", "tiny.toml", "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode != 0
    assert not (tmp_path / "run" / "mufin.json").exists()
    assert list((tmp_path / "run" / checkpoint.FOLDER).glob("0*")), done.stderr
    assert main([*command, "--resume"]) == 0
    assert content(tmp_path / "run") == content(whole)


def test_files_that_may_not_grow(
    command: list[str], whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A true error of the system at any size: in the cache, in checkpoints, in the model."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 1000, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            assert main([*command, "--resume"]) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        said = capsys.readouterr().err
        assert str(tmp_path / "run") in said
        assert "too large" in said
        assert not list((tmp_path / "run").glob("*.safetensors"))
    assert main([*command, "--resume"]) == 0
    assert content(tmp_path / "run") == content(whole)


def test_a_loss_that_is_no_number(tiny_config: Config, whole: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "run", tiny_config.override(["run.checkpoint=0"])
    with pytest.MonkeyPatch.context() as patch:
        real, steps = finetune.Tuner.step, [0]

        def broken(*given: Any) -> Any:
            steps[0] += 1
            return real(*given) * (float("nan") if steps[0] == 2 else 1)

        patch.setattr(finetune.Tuner, "step", broken)
        with pytest.raises(ModelError, match="loss is nan in finetune, epoch 1, step 2; lower finetune.lr"):
            fit(made_shop(3), config, run, quiet=True)
    assert not (run / "mufin.json").exists()
    fit(made_shop(3), config, run, quiet=True, if_exists="resume")
    fit(made_shop(3), config, tmp_path / "other", quiet=True)
    assert content(run) == content(tmp_path / "other")


def test_no_thread_can_be_started(
    tiny_config: Config, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container that limits processes: images are then decoded by the caller."""

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("mufin-images"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))
    loading._threads.cache_clear()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    fit(made_shop(2), tiny_config, tmp_path / "run", quiet=True)
    loading._threads.cache_clear()
    assert content(tmp_path / "run") == content(whole)


def test_a_clock_that_jumps(
    tiny_config: Config, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backwards between stopping and resuming; the files that were written are of the future."""

    def stop(event: Event) -> None:
        if event.module == "finetune":
            raise KeyboardInterrupt

    run, config = tmp_path / "run", tiny_config
    with pytest.raises(KeyboardInterrupt):
        fit(made_shop(2), config, run, quiet=True, callbacks=[stop])
    now = time.time()
    for path in run.rglob("*"):
        os.utime(path, (now + 1e9, now + 1e9))
    monkeypatch.setattr(time, "time", lambda: now - 1e9)
    assert "last checkpoint is 0 min old" in checkpoint.Checkpoints(run, 0).stopped()
    fit(made_shop(2), config, run, quiet=True, if_exists="resume")
    assert content(run) == content(whole)


def test_a_cache_that_is_damaged(
    tiny_config: Config, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))
    for name in ("first", "second"):
        fit(made_shop(2), tiny_config, tmp_path / name, quiet=True)
        assert content(tmp_path / name) == content(whole)
        files = list((tmp_path / "cache").rglob("*.features"))
        assert files
        for path in files:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 4
            path.write_bytes(data)
    assert "damaged and will be recomputed" in caplog.text


def test_two_trainings_on_one_cache(command: list[str], whole: Path, tmp_path: Path) -> None:
    both = []
    for name in ("one", "two"):
        given = [str(tmp_path / name) if word == str(tmp_path / "run") else word for word in command]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        both.append(subprocess.Popen([sys.executable, "-m", "mufin", *given], env=environment))
    assert [process.wait(120) for process in both] == [0, 0]
    assert content(tmp_path / "one") == content(tmp_path / "two") == content(whole)
