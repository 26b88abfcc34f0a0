"""Memory of mapped files: given back, and there again when it is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mufin.files.tensors import read_tensors
from mufin.runtime.memory import release


def resident(path: Path) -> int:
    """kB of a file that this process has in memory by mapping it."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    sizes = [next(line for line in lines if line.startswith("Rss:")) for found in lines if str(path) in found]
    return sum(int(size.split()[1]) for size in sizes)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux tells what is resident")
def test_pages_go_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    weights = {"a": torch.randn(500, 1000), "b": torch.randn(3)}
    save_file(weights, path)
    found = read_tensors(path).all
    assert torch.equal(found["a"], weights["a"])
    assert resident(path) > 1900
    release(found["b"], path)
    assert resident(path) < 100
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_memory_that_is_no_mapping_stays_as_it_is(tmp_path: Path) -> None:
    ones = torch.ones(1 << 20)
    release(ones, tmp_path / "weights.safetensors")
    assert bool((ones == 1).all())
