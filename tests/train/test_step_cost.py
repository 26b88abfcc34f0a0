"""What a step touches does not grow with the number of labels; `benchmarks/step_cost.py` has the seconds."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("loss", ["cosine", "softmax"])
def test_gradients_of_classifiers_hold_the_labels_of_the_batch_alone(loss: str, stage: Any) -> None:
    from mufin.train.finetune import finetune

    it = stage("finetune.epochs=1", "finetune.batch=2", "finetune.sampled=0", f"finetune.loss={loss}",
               "finetune.positives=1", "finetune.negatives=1")  # fmt: skip
    finetune(it.networks, it.data, it.shortlist, it.config, it.context)
    for parameter in it.networks.classifiers.sparse_parameters():
        assert parameter.grad.is_sparse
        assert parameter.grad.coalesce().values().shape[0] <= 4
