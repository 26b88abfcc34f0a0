"""Many images: in order, a bounded number ahead, by threads that last but keep no program alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mufin.data import loading
from mufin.data.decoding import Budget
from mufin.data.images import load_pixels
from mufin.data.loading import cores, loaded
from mufin.errors import PictureError

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def test_pixels_come_in_order_and_broken_images_say_why(
    picture: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(picture("blue"))
    red, broken, blue = loaded([picture("red"), b"", tmp_path / "a.png"], 8)
    np.testing.assert_array_equal(red, load_pixels(picture("red"), 8))
    assert isinstance(broken, PictureError)
    assert str(broken) == "image of 0 bytes: empty (0 bytes); replace it"
    np.testing.assert_array_equal(blue, load_pixels(picture("blue"), 8))
    assert list(loaded([], 8)) == []


class Slow:
    """Stands in for `load_pixels`, and counts."""

    def __init__(self, patch: pytest.MonkeyPatch, seconds: float = 0.0) -> None:
        self.seconds, self.begun = seconds, 0
        self.threads: set[int] = set()
        patch.setattr(loading, "load_pixels", self)

    def __call__(self, picture: Any, size: int) -> np.ndarray:
        self.begun += 1
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        return np.full((1,), int(picture))


def settled(slow: Slow) -> int:
    """How many images were begun, once no further one is."""
    before = -1
    while before != slow.begun:
        before = slow.begun
        time.sleep(0.1)
    return before


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_never_more_than_a_batch_in_flight(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    with closing(loaded([str(n) for n in range(20)], 8, batch)) as found:
        assert next(found) == [0]
        assert settled(slow) == min(batch, 20)  # the one that was read, and those that wait
        assert next(found) == [1]
        assert settled(slow) == min(batch + 1, 20)
        assert [int(one[0]) for one in found if isinstance(one, np.ndarray)] == list(range(2, 20))


@pytest.mark.parametrize("batch", [1, 2, 5, 64])
def test_no_thread_works_beside_a_caller_who_needs_all_cores(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    for number, pixels in enumerate(loaded([str(n) for n in range(12)], 8, batch, overlap=False)):
        assert pixels == [number]
        assert slow.begun == min((number // batch + 1) * batch, 12)


def test_the_same_threads_load_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, 0.001)
    for _ in range(5):
        list(loaded([str(n) for n in range(10)], 8))
    assert len(slow.threads) <= cores()
    assert threading.get_ident() not in slow.threads


def test_one_image_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    assert list(loaded(["7"], 8)) == [[7]]
    assert slow.threads == {threading.get_ident()}


def test_who_stops_early_leaves_the_rest_undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch, 0.05)
    with closing(loaded([str(n) for n in range(200)], 8, 100)) as found:
        next(found)
    assert settled(slow) <= 1 + 2 * cores()


def test_a_failing_thread_ends_in_its_error(
    monkeypatch: pytest.MonkeyPatch, picture: Callable[..., bytes]
) -> None:
    def fail(picture: Any, size: int) -> np.ndarray:
        raise MemoryError("no memory for this image")

    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_pixels", fail)
        with pytest.raises(MemoryError, match="no memory for this image"):
            list(loaded([b"x", b"y"], 8))
    assert len(list(loaded([picture()] * 3, 8))) == 3  # and the threads still work


def script(code: str, *arguments: str) -> subprocess.Popen[str]:
    head = "import io, os, sys, time\nfrom PIL import Image\nfrom mufin.data import decoding, loading\n"
    head += "stream = io.BytesIO()\nImage.new('RGB', (9, 9)).save(stream, 'PNG')\nraw = stream.getvalue()\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_fork
def test_a_fork_decodes_with_threads_and_memory_of_its_own() -> None:
    process = script(
        "print(len(list(loading.loaded([raw] * 9, 8))), flush=True)\n"
        "with decoding.BUDGET.spend(decoding.MAX_TOTAL_MEMORY):\n"  # as a thread of the parent may do
        "    child = os.fork()\n"
        "if child == 0:\n"
        "    print(len(list(loading.loaded([raw] * 9, 8))), flush=True)\n"
        "else:\n"
        "    sys.exit(os.waitpid(child, 0)[1])\n"
    )
    told, errors = process.communicate(timeout=60)
    assert (told.split(), errors, process.returncode) == (["9", "9"], "", 0)


def test_a_program_ends_though_images_are_left() -> None:
    process = script("found = loading.loaded([raw] * 200, 8)\nnext(found)\nprint('end')\n")
    assert process.communicate(timeout=60) == ("end\n", "")
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupted_program_ends_soon() -> None:
    process = script(
        "from contextlib import closing\n"
        "loading.load_pixels = lambda picture, size: time.sleep(0.2)\n"
        "with closing(loading.loaded([raw] * 10_000, 8, 5_000)) as found:\n"
        "    for n, _ in enumerate(found):\n"
        "        n or print('begun', flush=True)\n"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert time.monotonic() - start < 20  # decoding the rest would take minutes


def test_a_budget_that_is_reset_is_whole() -> None:
    budget = Budget(10)
    with budget.spend(10):
        budget.reset()
        with budget.spend(10):
            assert budget.left == 0
