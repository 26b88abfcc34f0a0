"""Progress on something that is not a terminal."""

from __future__ import annotations

import pytest

from mufin.progress import Progress, Stages


def test_what_is_left_follows_the_pace_of_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts go by in a moment and pictures do not: the mean pace of both would promise too much."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    with Progress().task("Encoding", 1000) as task:
        clock[0] += 10
        task.advance(800)
        for _ in range(10):
            clock[0] += 1
            task.advance(1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "Encoding: 800/1000, 2 s left",
        "Encoding: 810/1000, 190 s left",
        "Encoding: 810/1000 in 20 s",
    ]


def test_stages_say_number_name_place_time_left_in_all_and_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything takes twice as long as expected: so will what is still to come."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("mufin.progress.used_memory", lambda: 1_100_000_000)
    stages = Stages({"encoding": 10.0, "fine-tuning": 100.0, "assembling": 30.0})
    stages.begin("encoding")
    with stages.task("Encoding items", 20) as task:
        clock[0] += 20
        task.advance(20)
    stages.begin("fine-tuning")
    with stages.task("Fine-tuning", 100) as task:
        task.at("epoch 1 of 5")
        for step in range(20):
            clock[0] += 2
            task.advance(1, loss=1 / (step + 1))
        task.at("epoch 2 of 5")
        task.advance(0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "Stage 1 of 3: encoding, encoding items: 20/20, 4 min left in all · 1.1 GB in use",
        "Stage 1 of 3: encoding, encoding items: 20/20 in 20 s",
    ]
    # 10 s of 5 steps: 190 s more, and 2 × 30 s to assemble.
    assert lines[2] == (
        "Stage 2 of 3: fine-tuning, epoch 1 of 5: 5/100, 4 min left in all · 1.1 GB in use · loss 0.2"
    )
    assert lines[-1].startswith("Stage 2 of 3: fine-tuning, epoch 2 of 5: 20/100 in 40 s")


def test_stages_without_a_plan_tell_the_time_left_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mufin.progress.used_memory", lambda: 0)
    stages = Stages(dict.fromkeys(("one", "two"), 0.0))
    stages.begin("two")
    assert stages.stage_of("Two") == "Stage 2 of 2: two"
    assert stages.remaining(12.0) == "12 s left"
