"""Outputs of frozen layers on disk: computed once, keyed by content, whole whatever happens."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mufin.data.ragged import Ragged
from mufin.encode import cache
from mufin.encode.cache import FeatureCache


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))


class Counter:
    """Prepares a number as that many rows of itself, and remembers what it was asked."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.asked: list[int] = []
        self.fail_at = fail_at

    def __call__(self, numbers: Sequence[int]) -> Ragged:
        if self.fail_at in numbers:
            raise RuntimeError("killed")
        self.asked += numbers
        return Ragged.of([np.full((n % 4, 2), n, np.float32) for n in numbers])


def asked_for(numbers: list[int], prepare: Any, name: str = "f") -> Ragged:
    return FeatureCache(name).features(np.array(numbers, np.uint64), numbers, prepare)


def check(rows: Ragged, numbers: list[int]) -> None:
    assert rows.lengths.tolist() == [n % 4 for n in numbers]
    for i, n in enumerate(numbers):
        assert (rows.flat[rows.offsets[i] : rows.offsets[i + 1]] == n).all()


def test_the_second_call_computes_nothing() -> None:
    prepare = Counter()
    check(asked_for([5, 3, 9, 4], prepare), [5, 3, 9, 4])
    assert sorted(prepare.asked) == [3, 4, 5, 9]
    check(asked_for([9, 5, 4], prepare), [9, 5, 4])
    assert len(prepare.asked) == 4
    check(asked_for([7, 9], prepare), [7, 9])
    assert prepare.asked[4:] == [7]
    asked_for([5], prepare, "another")
    assert prepare.asked[5:] == [5]


def test_a_killed_run_keeps_the_shards_it_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD_SIZE", 3)
    numbers = list(range(1, 9))
    with pytest.raises(RuntimeError):
        asked_for(numbers, Counter(fail_at=5))
    prepare = Counter()
    check(asked_for(numbers, prepare), numbers)
    assert prepare.asked == [4, 5, 6, 7, 8]


def test_half_written_shards_are_not_read(tmp_path: Path) -> None:
    """What another run is writing, or was killed at, lies in hidden files and is nobody's business."""
    prepare = Counter()
    asked_for([1, 2], prepare)
    (tmp_path / "cache" / "features-2" / "f" / ".tmp-other").write_bytes(b"mufin fea")
    check(asked_for([2, 3], prepare), [2, 3])


def test_runs_side_by_side_do_not_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SHARD_SIZE", 8)
    failures: list[BaseException] = []
    together = threading.Barrier(4)

    def run(start: int) -> None:
        try:
            together.wait(timeout=20)
            for numbers in (list(range(1, 60)), list(range(start, start + 40))):
                check(asked_for(numbers, Counter()), numbers)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(start,)) for start in (1, 1, 20, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# -- damage -------------------------------------------------------------------------------------------------


def files(name: str = "f") -> list[Path]:
    return sorted(FeatureCache(name).folder.glob("*.features"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.message for record in caplog.records]
    caplog.clear()
    return found


NUMBERS = list(range(1, 40))


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Four files of features of NUMBERS."""
    monkeypatch.setattr(cache, "SHARD_SIZE", 10)
    check(asked_for(NUMBERS, Counter()), NUMBERS)
    assert len(files()) == 4
    return files()


def check_mended(caplog: pytest.LogCaptureFixture, computed: int = 10) -> None:
    """What is damaged is computed again with one warning, and the next run finds everything whole."""
    prepare = Counter()
    check(asked_for(NUMBERS, prepare), NUMBERS)
    assert 0 < len(prepare.asked) <= computed
    (warning,) = warnings(caplog)
    assert "damaged" in warning
    prepare = Counter()
    check(asked_for(NUMBERS, prepare), NUMBERS)
    assert not prepare.asked
    assert not warnings(caplog)


def test_every_damage_is_noticed(shards: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(0)
    for _ in range(60):
        path = files()[random.integers(4)]
        content = bytearray(path.read_bytes())
        content[random.integers(len(content))] ^= 1 << random.integers(8)
        path.write_bytes(content)
        check_mended(caplog)


def test_every_byte_of_a_file_is_checked(caplog: pytest.LogCaptureFixture) -> None:
    asked_for([1, 2], Counter())
    (path,) = files()
    content = path.read_bytes()
    for bit in range(0, 8 * len(content), 7):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        prepare = Counter()
        check(asked_for([1, 2], prepare), [1, 2])
        assert prepare.asked == [1, 2]
        assert len(warnings(caplog)) == 1


def test_truncated_files(shards: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    whole = shards[1].read_bytes()
    for size in (0, 1, 20, 40, 60, 200, len(whole) // 2, len(whole) - 1):
        shards[1].write_bytes(whole[:size])
        check_mended(caplog)


def test_foreign_files(shards: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    asked_for(NUMBERS, lambda numbers: Ragged.of([np.zeros((1, 5)) for _ in numbers]), "other")
    for content in (files("other")[0].read_bytes(), b"\x93NUMPY\x01\0" + bytes(500), b"null"):
        shards[2].write_bytes(content)
        check_mended(caplog)


def test_rows_of_another_shape_or_type_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for wrong in (
        np.zeros((1, 3), np.float32),
        np.zeros((1, 2), np.float16),
        np.zeros((1, 2, 2), np.float32),
    ):
        name = f"{wrong.dtype}-{wrong.shape}"
        asked_for([1, 2], lambda numbers, row=wrong: Ragged.of([row for _ in numbers]), name)
        prepare = Counter()
        check(asked_for([1, 2, 3], prepare, name), [1, 2, 3])
        assert sorted(prepare.asked) == [1, 2, 3]
        assert len(warnings(caplog)) == 1


def test_only_what_is_read_is_checked(shards: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    for path in shards:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1  # of the highest key in the file: a number with rows
        path.write_bytes(content)
    prepare = Counter()
    check(asked_for([1, 11, 21], prepare), [1, 11, 21])
    assert not prepare.asked
    assert not warnings(caplog)


def test_what_is_no_file_is_passed_over(shards: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    (shards[0].parent / "0.features").mkdir()
    (shards[0].parent / "notes.txt").write_text("mine")
    check(asked_for(NUMBERS, Counter()), NUMBERS)
    assert len(warnings(caplog)) == 1
    assert (shards[0].parent / "notes.txt").read_text() == "mine"


def test_files_that_vanish_and_are_damaged_under_running_readers(shards: list[Path]) -> None:
    failures: list[BaseException] = []
    ended = threading.Event()

    def read() -> None:
        try:
            for _ in range(60):
                check(asked_for(NUMBERS, Counter()), NUMBERS)
        except BaseException as error:
            failures.append(error)

    def damage() -> None:
        random = np.random.default_rng(0)
        while not ended.wait(0.001):
            path = shards[random.integers(4)]
            with contextlib.suppress(OSError):
                path.unlink() if random.random() < 0.5 else os.truncate(path, random.integers(300))

    readers = [threading.Thread(target=read) for _ in range(3)]
    vandal = threading.Thread(target=damage)
    for thread in (vandal, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    ended.set()
    vandal.join()
    assert not failures


# -- no place to write --------------------------------------------------------------------------------------


def test_without_a_place_to_write_everything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(cache, "SHARD_SIZE", 10)
    for name in ("f", "g"):  # texts and images, say
        check(asked_for(NUMBERS, Counter(), name), NUMBERS)
    (warning,) = warnings(caplog)
    assert "Not a directory" in warning
    assert "MUFIN_CACHE" in warning


def test_a_full_disk(shards: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    """Writing fails half-way; what was there is still read."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    prepare = Counter()
    try:
        rows = asked_for([*NUMBERS, 50, 51], prepare)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    check(rows, [*NUMBERS, 50, 51])
    assert prepare.asked == [50, 51]
    assert len(warnings(caplog)) == 1
    assert sorted(shards[0].parent.iterdir()) == shards


def test_large_features_without_a_disk_stay_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cache, "MAX_IN_MEMORY", 0)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "file" / "cache"))
    check(asked_for([3, 2, 7], Counter()), [3, 2, 7])


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("MUFIN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    check(asked_for([3, 2, 7], Counter()), [3, 2, 7])


def test_features_beyond_memory_are_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cache, "MAX_IN_MEMORY", 0)
    rows = asked_for([3, 2, 7], Counter())
    assert isinstance(rows.flat, np.memmap)
    check(rows, [3, 2, 7])
    assert not list(tmp_path.glob("**/.gathered-*"))
