"""The heap in training: kept while inside, given back behind, whatever happens."""

from __future__ import annotations

import numpy as np
import pytest

from mufin import heap


def test_it_is_settled_again_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[int, int] = {}
    trimmed: list[int] = []
    functions = {"mallopt": options.__setitem__, "malloc_trim": trimmed.append}
    monkeypatch.setattr(heap, "_glibc", functions.__getitem__)

    def train() -> None:
        with heap.kept():
            assert options[heap.MMAP_THRESHOLD] == heap.STEP
            assert not trimmed
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert options[heap.MMAP_THRESHOLD] == heap.LARGE
    assert options[heap.TRIM_THRESHOLD] == heap.FREE
    assert trimmed == [0]


def test_where_there_is_no_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda name: None)
    with heap.kept():
        heap.settle()


def test_values_fit_what_mallopt_takes() -> None:
    with heap.kept():
        assert np.ones(1 << 20).sum() == 1 << 20
    assert max(heap.STEP, heap.FREE, heap.LARGE) < 2**31
