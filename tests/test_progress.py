"""Progress on something that is not a terminal."""

from __future__ import annotations

import pytest

from mufin.progress import Progress


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
