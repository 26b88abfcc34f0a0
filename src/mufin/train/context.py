"""Context: what surrounds a training run — its random numbers, its progress bars, its logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mufin.progress import Progress
from mufin.ragged import CPU


def seeded(seed: int, device: torch.device = CPU) -> torch.Generator:
    """A source of random numbers on a device."""
    return torch.Generator(device).manual_seed(seed)


@dataclass
class Context:
    """All random numbers of Modules I and IV come from `generator`, but for dropout: torch's own."""

    generator: torch.Generator = field(default_factory=lambda: seeded(0))
    progress: Progress = field(default_factory=lambda: Progress(quiet=True))
    logs: Path | None = None  # a folder for TensorBoard
    batches: int | None = None  # of an epoch at most

    def epoch(self, n: int, batch: int) -> int:
        """How many batches an epoch over n has."""
        return min(-(-n // batch), self.batches or n)

    def state_dict(self) -> dict[str, Tensor]:
        """Where all random numbers stand."""
        return {"generator": self.generator.get_state(), **torch_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue with the random numbers that followed `state_dict`."""
        self.generator.set_state(state["generator"])
        set_torch_state(state)


def torch_state() -> dict[str, Tensor]:
    """Where torch's own random numbers stand, on the CPU and on each GPU."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), **{f"cuda:{i}": state for i, state in enumerate(gpus)}}


def set_torch_state(state: Mapping[str, Tensor]) -> None:
    """Continue where torch's own random numbers stood."""
    torch.set_rng_state(state["cpu"])
    for name, there in state.items():
        if name.startswith("cuda:"):
            torch.cuda.set_rng_state(there, name)
