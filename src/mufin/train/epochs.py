"""Run the epochs of Modules I and IV: progress, validation, callbacks, early stopping, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from mufin.encode.embedder import Embedder
from mufin.errors import ModelError, UsageError
from mufin.progress import Task
from mufin.train.checkpoint import State, load_trained_state, trained_state
from mufin.train.loop import Context, Event, Loop

VALIDATION = "validation P@1"  # %, on held-out points


class Trainer(Protocol):
    """What a module does in its epochs and steps."""

    name: str  # of the module's settings
    title: str  # for users
    embedder: Embedder
    loop: Loop

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Everything that is trained, by name."""

    @property
    def kept(self) -> Mapping[str, Tensor]:
        """Tensors to keep with a checkpoint, since the current weights cannot reproduce them."""

    def refreshes(self, epoch: int) -> bool:
        """Whether `start` computes anything from weights that are being trained."""

    def start(self, epoch: int) -> None:
        """Prepare an epoch: choose the features, embed what its steps look up."""

    def batches(self) -> tuple[Tensor, ...]:
        """Split all examples into the batches of an epoch."""

    def step(self, batch: Tensor) -> Tensor:
        """Train on a batch and return the loss."""


class TensorBoard:
    """A callback that writes logs for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError('tensorboard is not installed; run: pip install "mufin[tensorboard]"') from None
        self.writer: Any = SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        for name, value in event.values.items():
            self.writer.add_scalar(f"{event.module}/{name}", value, event.step)
        self.writer.flush()


class Epochs:
    """The epochs of a module, from the beginning or from where a killed run stopped."""

    def __init__(self, trainer: Trainer, epochs: int, per_epoch: int, context: Context) -> None:
        self.trainer, self.epochs, self.per_epoch, self.context = trainer, epochs, per_epoch, context
        self.ranks = trainer.loop.ranks
        self.epoch = self.done = 0  # position: finished epochs, and steps of the current one
        self.random: State = {}  # random states at the start of the epoch
        self.anchor: State = {}  # the epoch of the last refresh and its weights
        self.mean_loss: float | None = None
        self.best, self.without_gain = 0.0, 0  # P@1, and validations since

    def run(self, validate: Callable[[], float] | None = None) -> None:
        """Run the remaining epochs."""
        saved = self._saved()
        if saved is not None:
            self.epoch, self.done, self.mean_loss = saved["epoch"], saved["done"], saved["loss"]
            self.epochs, self.best, self.without_gain = saved["epochs"], saved["best"], saved["without_gain"]
            if not saved["anchor"]:  # written before the first epoch
                self._restore(saved)
                saved = None
        elif self.trainer.kept:
            self._checkpoint()
        validated = set(epochs_to_validate(self.epochs))
        with self.context.progress.task(self.trainer.title, self.epochs * self.per_epoch) as task:
            task.advance(self._finished_steps)
            while self.epoch < self.epochs:
                task.at(f"epoch {self.epoch + 1} of {self.epochs}")
                for batch in self._batches(saved):
                    self._step(batch, task)
                saved = None
                if validate and self.epoch in validated:
                    self._validated(validate(), task)
                self.epoch, self.done = self.epoch + 1, 0
        if saved is not None:  # the module was finished
            self._restore(saved)
        else:
            self._checkpoint()

    @property
    def _finished_steps(self) -> int:
        return self.epoch * self.per_epoch + self.done

    def _batches(self, saved: State | None) -> Iterator[Tensor]:
        """Yield the remaining batches of the current epoch."""
        trainer, context = self.trainer, self.context
        if saved is not None:
            self.random, self.anchor = self._own_part(saved)["random_at_start"], saved["anchor"]
            load_trained_state(trainer.embedder, self.anchor["embedder"])
            if self.anchor["epoch"] != self.epoch:
                trainer.start(self.anchor["epoch"])
            context.load_state_dict(self.random)
        elif context.checkpoints is not None:
            self.random = context.state_dict()
            if trainer.refreshes(self.epoch):
                weights = {k: t.clone() for k, t in trained_state(trainer.embedder).items()}
                self.anchor = {"epoch": self.epoch, "embedder": weights}
        trainer.start(self.epoch)
        batches = trainer.batches()
        if saved is not None:
            self._restore(saved)
        yield from islice(batches, self.done, self.per_epoch)

    def _step(self, batch: Tensor, task: Task) -> None:
        loss = self.trainer.step(batch)
        self.done += 1
        told = self._finished_steps % 5 == 1
        if told or not loss.is_cuda:  # reading a loss synchronises the GPU
            value = self._finite(float(loss.detach()))
        if told:
            self.mean_loss = value if self.mean_loss is None else 0.8 * self.mean_loss + 0.2 * value
            task.advance(1, loss=self.mean_loss)
            self._tell({"loss": value})
        else:
            task.advance(1)
        if self.context.checkpoints is not None and self.ranks.agree(self.context.checkpoints.due()):
            self._checkpoint()

    def _finite(self, loss: float) -> float:
        if not math.isfinite(loss):
            name, epoch = self.trainer.name, self.epoch + 1
            raise ModelError(
                f"training diverged: the loss is {loss} in {name}, epoch {epoch}, step {self.done}; "
                f"lower {name}.lr and train again, with --overwrite (the last checkpoint is kept)"
            )
        return loss

    def _validated(self, precision: float, task: Task) -> None:
        """Report the P@1 of held-out points, and end the module if it has not improved for long."""
        task.advance(0, **{VALIDATION: precision})
        self._tell({VALIDATION: precision})
        self.without_gain = 0 if precision > self.best else self.without_gain + 1
        self.best = max(self.best, precision)
        if self.context.patience is not None and self.without_gain >= self.context.patience:
            self.epochs = self.epoch + 1

    def _tell(self, values: dict[str, float]) -> None:
        steps = self.epochs * self.per_epoch
        event = Event(self.trainer.name, self.epoch, self.epochs, self._finished_steps, steps, values)
        for callback in self.context.callbacks:
            callback(event)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def _saved(self) -> State | None:
        """Return the state of a killed run that stopped in this module."""
        checkpoints = self.context.checkpoints
        if checkpoints is None or checkpoints.saved is None or checkpoints.saved.module != self.trainer.name:
            return None
        saved, checkpoints.saved = checkpoints.saved, None
        return saved.state

    def _restore(self, saved: State) -> None:
        """Restore networks, optimizers and random states to where the killed run stopped."""
        own = self._own_part(saved)
        for name, state in {**saved["modules"], **own["modules"]}.items():
            load_trained_state(self.trainer.modules[name], state)
        self.trainer.loop.load_state_dict(saved["loop"], own["loop"])
        self.context.load_state_dict(own["random"])

    def _own_part(self, saved: State) -> State:
        """Return the part of a checkpoint that belongs to this rank alone."""
        own: State = saved["ranks"][self.ranks.rank]
        return own

    def _checkpoint(self) -> None:
        if self.context.checkpoints is None:
            return
        modules, loop = self.trainer.modules, self.trainer.loop
        states = {name: trained_state(module) for name, module in modules.items()}
        spread = {name: states.pop(name) for name in modules if name == "classifiers"}
        own = {
            "random_at_start": self.random, "random": self.context.state_dict(),
            "modules": spread, "loop": loop.rows_state_dict(),
        }  # fmt: skip
        every = self.ranks.collect(own)
        if not self.ranks.first:
            return
        state = {
            "epoch": self.epoch, "epochs": self.epochs, "done": self.done, "loss": self.mean_loss,
            "best": self.best, "without_gain": self.without_gain, "anchor": self.anchor,
            "modules": states, "loop": loop.state_dict(), "ranks": every,
        }  # fmt: skip
        self.context.checkpoints.write(self.trainer.name, state, self.trainer.kept)


def epochs_to_validate(epochs: int) -> Iterator[int]:
    """Return about ten epochs, always including the last."""
    every = max(1, epochs // 10)
    return (epoch for epoch in range(epochs) if (epoch + 1) % every == 0 or epoch == epochs - 1)
