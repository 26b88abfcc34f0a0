"""A stopped training goes on and ends with the very same model, whatever stopped it and wherever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from made import made_shop
from mufin import Catalogue, Config, Item, fit
from mufin.cli import main
from mufin.errors import BusyError, UsageError
from mufin.train import checkpoint
from mufin.train.epochs import Epochs
from mufin.train.loop import Event

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = {
    "paper": ["pretrain.loss=margin", "pretrain.refresh=2", "pretrain.sampled=0", "finetune.loss=cosine",
              "finetune.sampled=0"],
    "votes": ["memory.neighbours=5", "memory.loss=0.5", "rank.beta=learnt", "embed.input_dropout=0.2"],
    "encoders": ["text.train_layers=1", "vision.train_layers=1", "pretrain.encoder_epochs=1",
                 "finetune.encoder_epochs=2", "finetune.label_encoders=false"],
    "refreshed": ["finetune.refresh=1", "finetune.batches=clustered", "finetune.chunk=8"],
    "centroids": ["rank.start=centroid", "rank.cross=none", "pretrain.epochs=0"],
}  # fmt: skip


class Stopped(Exception):
    """Stands for whatever ends a training."""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a training end after so many steps of any module; those of a plan do not count."""
    step, left = Epochs._step, [steps]

    def counted(self: Epochs, *given: Any) -> None:
        if not left[0]:
            raise Stopped
        left[0] -= 1
        step(self, *given)

    monkeypatch.setattr(Epochs, "_step", counted)


def content(run: Path) -> dict[str, Any]:
    """All that a model folder holds: the manifest has the hash of every part."""
    return json.loads((run / "mufin.json").read_text())


@pytest.mark.parametrize("name", VARIANTS)
def test_a_resumed_training_ends_with_the_same_model(name: str, tiny_config: Config, tmp_path: Path) -> None:
    shop, config = made_shop(3), tiny_config.override([*VARIANTS[name], "run.checkpoint=0"])
    seen: list[Event] = []
    fit(shop, config, tmp_path / "whole", quiet=True, callbacks=[seen.append])
    steps = sum({event.module: event.steps for event in seen}.values())
    for stop in {1, steps // 3, steps // 2, steps - 1}:
        run = tmp_path / f"stopped-{stop}"
        with pytest.MonkeyPatch.context() as patch:
            stop_after(patch, stop)
            with pytest.raises(Stopped):
                fit(shop, config, run, quiet=True)
        assert not (run / "mufin.json").exists()
        fit(shop, config, run, quiet=True, if_exists="resume")
        assert content(run) == content(tmp_path / "whole"), stop
        assert not (run / checkpoint.FOLDER).exists()


def test_twenty_kills_at_random_moments(tiny_config: Config, tmp_path: Path) -> None:
    """Real processes and SIGKILL, in every stage, from an empty feature cache to the final save."""
    made_shop(3).write(tmp_path / "shop")
    config = tiny_config.override(["pretrain.epochs=20", "finetune.epochs=10"])
    (tmp_path / "tiny.toml").write_text(config.to_toml(), "utf-8")
    script = ROOT / "benchmarks" / "reliability" / "killed_training.py"
    command = [sys.executable, str(script), "--catalogue", str(tmp_path / "shop"), "--kills", "20"]
    done = subprocess.run(
        [*command, "--config", str(tmp_path / "tiny.toml")],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == 20
    assert found["saving"]


def test_a_damaged_checkpoint_is_passed_over(
    tiny_config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop, config = made_shop(2), tiny_config.override(["run.checkpoint=0"])
    fit(shop, config, tmp_path / "whole", quiet=True)
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Stopped):
            fit(shop, config, run, quiet=True)
    *_, before, last = sorted((run / checkpoint.FOLDER).glob("[0-9]*"))
    assert before.is_dir()
    data = bytearray((last / checkpoint.STATE).read_bytes())
    data[-5] ^= 1
    (last / checkpoint.STATE).write_bytes(data)
    fit(shop, config, run, quiet=True, if_exists="resume")
    assert "is damaged" in caplog.text
    assert content(run) == content(tmp_path / "whole")


@pytest.fixture
def stopped(tiny_config: Config, tmp_path: Path) -> Path:
    """The folder of a training that stopped in Module IV."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 5)
        with pytest.raises(Stopped):
            fit(made_shop(2), tiny_config.override(["run.checkpoint=0"]), tmp_path / "run", quiet=True)
    return tmp_path / "run"


def test_a_stopped_training_is_not_overwritten_unasked(stopped: Path, tiny_config: Config) -> None:
    with pytest.raises(UsageError, match="stopped during fine-tuning; .* --resume .* --overwrite"):
        fit(made_shop(2), tiny_config, stopped, quiet=True)
    fit(made_shop(2), tiny_config, stopped, quiet=True, if_exists="overwrite")
    assert (stopped / "mufin.json").exists()
    with pytest.raises(UsageError, match="already holds a model.*--overwrite"):
        fit(made_shop(2), tiny_config, stopped, quiet=True)
    fit(made_shop(2), tiny_config, stopped, quiet=True, if_exists="resume")  # nothing is left to do
    with pytest.raises(UsageError, match="finished model of another training: seed was 0 and is 1"):
        fit(made_shop(2), tiny_config.override(["seed=1"]), stopped, quiet=True, if_exists="resume")


def test_a_finished_training_is_that_of_its_catalogue(tiny_config: Config, tmp_path: Path) -> None:
    run, shop = tmp_path / "run", made_shop(2)
    first, *others, last = shop.items
    train = {item.id: [f"q-{item.category}"] for item in [first, *others] if item.id.endswith("-0")}
    given = {"items": [first, *others, last], "labels": [*shop.labels], "train": train}

    def again(**changed: Any) -> None:
        fit(Catalogue.build(**given | changed), tiny_config, run, quiet=True, if_exists="resume")

    again()
    again()  # nothing is left to do
    again(items=[first, *others, replace(last, texts=("in no split",))])
    for name, changed in {
        "item texts": {"items": [replace(first, texts=("crimson",)), *others, last]},
        "item images": {"items": [replace(first, images=()), *others, last]},
        "label ids": {"labels": [*shop.labels, Item("new", ["new"])]},
        "label texts": {"labels": [replace(shop.labels[0], texts=("crimson",)), *list(shop.labels)[1:]]},
        "labels of datapoints": {"train": train | {first.id: ["q-bar"]}},
    }.items():
        with pytest.raises(UsageError, match=rf"another training: .*{name} have changed.*--overwrite"):
            again(**changed)


def test_an_overwritten_model_is_not_taken_for_the_result(tiny_config: Config, tmp_path: Path) -> None:
    """The new training is killed before its first checkpoint, and the old model is still there."""
    run, other = tmp_path / "run", tmp_path / "other"
    fit(made_shop(2), tiny_config, run, quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 0)
        with pytest.raises(Stopped):
            fit(made_shop(3), tiny_config, run, quiet=True, if_exists="overwrite")
    fit(made_shop(3), tiny_config, run, quiet=True, if_exists="resume")
    fit(made_shop(3), tiny_config, other, quiet=True)
    assert content(run) == content(other)


def test_what_killed_writes_leave_is_removed(stopped: Path, tiny_config: Config) -> None:
    killed = stopped / checkpoint.FOLDER / f"{checkpoint.WRITING}x"
    killed.mkdir()
    (killed / "state.safetensors").write_bytes(b"half")
    (stopped / checkpoint.REMOVED / "00001").mkdir(parents=True)
    fit(made_shop(2), tiny_config, stopped, quiet=True, if_exists="resume")
    assert sorted(path.name for path in stopped.glob(".mufin*")) == [".mufin.lock"]
    (stopped / checkpoint.REMOVED / "00001").mkdir(parents=True)  # killed after the model was complete
    fit(made_shop(2), tiny_config, stopped, quiet=True, if_exists="resume")
    assert sorted(path.name for path in stopped.glob(".mufin*")) == [".mufin.lock"]


def test_another_training_is_not_resumed(stopped: Path, tiny_config: Config) -> None:
    changed = tiny_config.override(["finetune.epochs=9", "finetune.lr=0.5"])
    with pytest.raises(UsageError, match="finetune.epochs was 3 and is 9; finetune.lr was 0.01 and is 0.5"):
        fit(made_shop(2), changed, stopped, quiet=True, if_exists="resume")
    with pytest.raises(UsageError, match="catalogue.item texts have changed.*datapoints have changed"):
        fit(made_shop(3), tiny_config, stopped, quiet=True, if_exists="resume")
    assert any((stopped / checkpoint.FOLDER).iterdir())


def test_a_failed_final_save_keeps_the_checkpoint(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mufin.train import fit as module

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    shop, run = made_shop(2), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(module, "save", full)
        with pytest.raises(OSError, match="No space"):
            fit(shop, tiny_config, run, quiet=True)
    with monkeypatch.context() as patch:
        stop_after(patch, 0)  # no step is left to do
        fit(shop, tiny_config, run, quiet=True, if_exists="resume")
    assert (run / "mufin.json").exists()


def test_a_full_disk_costs_a_checkpoint_not_the_training(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    fit(made_shop(2), tiny_config, tmp_path / "run", quiet=True)
    assert "no checkpoint was written" in caplog.text
    assert (tmp_path / "run" / "mufin.json").exists()
    assert not list((tmp_path / "run").glob(".mufin-training/.writing*"))


def test_two_trainings_do_not_share_a_folder(tiny_config: Config, tmp_path: Path) -> None:
    from mufin.files.lock import writing

    (tmp_path / "run").mkdir()
    code = "import sys, time; from pathlib import Path; from mufin.files.lock import writing\n"
    code += "with writing(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match="is being written by"):
            fit(made_shop(2), tiny_config, tmp_path / "run", quiet=True)
    finally:
        other.kill()
        other.communicate()
    with writing(tmp_path / "run"):
        pass


def test_early_stopping_ends_a_module_that_no_longer_gains(tiny_config: Config, shop: Catalogue) -> None:
    seen: list[Event] = []
    config = tiny_config.override(["run.patience=1", "pretrain.epochs=30", "finetune.epochs=30"])
    fit(shop, config, quiet=True, callbacks=[seen.append])
    validated = [event for event in seen if "validation P@1" in event.values and event.module == "pretrain"]
    values = [event.values["validation P@1"] for event in validated]
    assert len(values) < 10
    assert values[-1] <= max(values[:-1])
    assert seen[-1].module == "finetune"


def test_the_command_resumes(tiny_config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_shop(2).write(tmp_path / "shop")
    (tmp_path / "tiny.toml").write_text(tiny_config.to_toml(), "utf-8")
    train = ["train", str(tmp_path / "shop"), "-o", str(tmp_path / "run"), "--config"]
    train += [str(tmp_path / "tiny.toml"), "-q"]
    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        assert main([*train, "--set", "run.checkpoint=0"]) == 2
    assert main(train) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*train, "--resume", "--overwrite"]) == 2
    with pytest.MonkeyPatch.context() as patch:  # refused before the plan, which takes a while
        patch.setattr("mufin.train.calibrate.plan", None)
        assert main([*train, "--resume", "--set", "finetune.epochs=9"]) == 2
    assert "finetune.epochs was 3 and is 9" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "run")]) == 2
    assert "contains unfinished training" in capsys.readouterr().err
    assert main([*train, "--resume"]) == 0
    assert main([*train, "--resume"]) == 0
    assert "had already finished" in capsys.readouterr().out
    assert main(train) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*train, "--overwrite"]) == 0
