"""Dropout on a processor: torch's, with cheaper random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mufin.runtime.autograd import Dropout, replace_dropout


@pytest.mark.parametrize("p", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_share_is_dropped_and_the_rest_scaled(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(333, 1001, dtype=dtype, requires_grad=True)  # not a multiple of four
    y = Dropout(p)(x)
    assert y.dtype == dtype
    assert float((y == 0).float().mean()) == pytest.approx(p, abs=0.004)
    assert torch.allclose(y[y != 0].float(), torch.tensor(1 / (1 - p)), rtol=0.01)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y)  # of ones, the derivative is the mask itself
    torch.manual_seed(0)
    assert torch.equal(Dropout(p)(x), y)


def test_nothing_at_rest_all_at_one() -> None:
    x = torch.randn(3, 5)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.5)(x[:0]).shape == (0, 5)


def test_a_network_keeps_its_weights_and_its_shares() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.25), nn.Sequential(nn.Dropout(0.5)))
    names = list(network.state_dict())
    replace_dropout(network)
    assert list(network.state_dict()) == names
    assert [m.p for m in network.modules() if isinstance(m, Dropout)] == [0.25, 0.5]
