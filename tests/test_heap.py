"""The heap in training: kept while inside, given back behind, whatever happens."""

from __future__ import annotations

import numpy as np
import pytest

from mufin import heap


def test_it_is_settled_again_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []
    monkeypatch.setattr(heap, "_glibc", lambda name: lambda *values: calls.append((name, values)))
    with pytest.raises(KeyboardInterrupt), heap.kept():
        inside = dict(values for name, values in calls if name == "mallopt")  # type: ignore[misc]  # pairs
        assert inside[heap.MMAP_THRESHOLD] == heap.STEP
        raise KeyboardInterrupt
    after = dict(values for name, values in calls if name == "mallopt")  # type: ignore[misc]  # pairs
    assert after[heap.MMAP_THRESHOLD] == heap.LARGE
    assert after[heap.TRIM_THRESHOLD] == heap.FREE
    assert calls[-1] == ("malloc_trim", (0,))


def test_where_there_is_no_glibc_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_glibc", lambda name: None)
    with heap.kept():
        heap.settle()


def test_values_fit_what_mallopt_takes() -> None:
    with heap.kept():
        assert np.ones(1 << 20).sum() == 1 << 20
    assert max(heap.STEP, heap.FREE, heap.LARGE) < 2**31
