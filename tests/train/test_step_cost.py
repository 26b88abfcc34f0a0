"""The cost of a step does not grow with the number of labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))


@pytest.mark.parametrize("loss", ["paper", "softmax"])
def test_steps_cost_the_same_with_twenty_times_the_labels(loss: str) -> None:
    from step_cost import step_times

    for _ in range(3):  # a busy machine may spoil a measurement, hardly three
        few, many = (step_times(n, loss, steps=8, batch=32) for n in (10_000, 200_000))
        if many[0] < 2 * few[0] and many[1] < 2 * few[1]:
            return
    pytest.fail(f"seconds a step of Modules I and IV: {few} with 10K labels, {many} with 200K")


@pytest.mark.parametrize("loss", ["cosine", "softmax"])
def test_gradients_of_classifiers_hold_the_labels_of_the_batch_alone(loss: str, stage: Any) -> None:
    from mufin.train.finetune import finetune

    it = stage("finetune.epochs=1", "finetune.batch=2", "finetune.sampled=0", f"finetune.loss={loss}",
               "finetune.positives=1", "finetune.negatives=1")  # fmt: skip
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    for parameter in it.networks.classifiers.sparse_parameters():
        assert parameter.grad.is_sparse
        assert parameter.grad.coalesce().values().shape[0] <= 4
