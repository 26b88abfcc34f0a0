"""A process of a training by several ranks; test_ranks.py starts them with torchrun."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from mufin.encode.bag import Bag
from mufin.train.ranks import Ranks

RANK = int(os.environ.get("RANK", "0"))


def train(folder: Path, out: str, die_at: str = "0") -> None:
    """Train and write down the loss of every step; rank 1 kills itself once, after this many steps."""
    from mufin import Catalogue, Config, fit  # `gather` starts faster without
    from mufin.train.loop import Loop

    losses: list[float] = []
    step, mark = Loop.step, folder / f"{out}.killed"

    def noted(self: Any, *given: Any) -> Any:
        total = step(self, *given)
        losses.append(float(total.detach()))
        if len(losses) == int(die_at) and RANK == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return total

    Loop.step = noted  # type: ignore[method-assign]
    config = Config.read(folder / "config.toml")
    try:
        fit(Catalogue.read(folder / "shop"), config, folder / out, quiet=True, if_exists="resume")
    finally:
        Loop.step = step  # type: ignore[method-assign]
    if RANK == 0:
        (folder / f"{out}.json").write_text(json.dumps(losses))


def gather(folder: Path, out: str) -> None:
    """Gather rows and bags of unequal shares; rank 2 owns none."""
    ranks = Ranks.join("cpu")
    owner = torch.tensor([1, 0, 0, 1, 0])
    rows = torch.arange(10.0).view(5, 2)
    mine = rows[ranks.owns(owner)].requires_grad_()
    every = ranks.gather(mine, owner)
    assert torch.equal(every, rows)
    weight = torch.full((5, 2), float(ranks.rank + 1))
    (every * weight).sum().backward()
    assert torch.equal(mine.grad, torch.full_like(mine, 6.0))  # 1 + 2 + 3, the gradients of all ranks
    width = 1 + ranks.rank
    bag = Bag(torch.ones(len(mine), width, 2), torch.ones(len(mine), width, dtype=torch.bool))
    found = ranks.gather_bag(bag, owner)
    assert found.values.shape == (5, 3, 2)
    assert found.mask.sum(1).tolist() == [2, 1, 1, 2, 1]
    assert ranks.agree(ranks.rank) == 0
    assert ranks.collect(ranks.rank) == ([0, 1, 2] if ranks.first else [ranks.rank])
    unused, used = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    if ranks.rank == 1:
        used.grad = torch.ones(2)
    assert float(ranks.sum_gradients([unused, used], torch.tensor(0.5))) == 1.5
    assert unused.grad is None
    assert torch.equal(used.grad, torch.ones(2))
    if ranks.first:
        (folder / out).touch()


if __name__ == "__main__":
    {"train": train, "gather": gather}[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
    sys.stderr.flush()
    os._exit(0)  # as `python -m mufin` ends: the threads of a process group can abort an ordinary exit
