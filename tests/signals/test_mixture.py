"""The mixture of evidence: a score, its parts, and a calibrated probability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mufin import Config
from mufin.signals import signals_of
from mufin.signals.mixture import Evidence, Mixture, Terms

rng = np.random.default_rng(3)
SIGNALS = signals_of(Config().override(["memory.neighbours=5", "text.words=true", "text.train_layers=0"]))
NAMES = [column.name for signal in SIGNALS for column in signal.columns]


def made(n: int = 40, k: int = 12, **columns: torch.Tensor) -> Evidence:
    """Random classifiers, similarities and votes; everything else zero unless given by name."""
    values = torch.zeros(n, k, len(NAMES))
    for name in ("classifier", "similarity"):
        values[..., NAMES.index(name)] = torch.from_numpy(rng.uniform(-1, 1, (n, k)).astype(np.float32))
    values[..., NAMES.index("memory")] = torch.from_numpy(rng.random((n, k)).astype(np.float32)) ** 4
    for name, column in columns.items():
        values[..., NAMES.index(name.replace("_", " "))] = column
    present = torch.ones(n, k, dtype=torch.bool)
    present[:, -2:] = False
    return Evidence(values, torch.full((n, k), 3.0), present, torch.zeros(n, len(Terms(SIGNALS).clues)))


def column(evidence: Evidence, name: str) -> torch.Tensor:
    return evidence.columns[..., NAMES.index(name)]


def test_the_papers_mixture_is_one_of_them() -> None:
    known = made()
    score = Mixture.of_beta(SIGNALS, 0.7).score(known)
    expected = 0.7 * column(known, "classifier") + 0.3 * column(known, "similarity")
    assert torch.allclose(score[known.present], expected[known.present], atol=1e-6)
    assert bool((score[~known.present] == -torch.inf).all())


def test_similarity_alone_at_beta_zero() -> None:
    known = made()
    score = Mixture.of_beta(SIGNALS, 0.0).score(known)
    assert torch.allclose(score[known.present], column(known, "similarity")[known.present])


def test_the_papers_settings_have_two_signals() -> None:
    assert [signal.name for signal in signals_of(Config())] == ["similarity", "classifier"]


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("log ")])
def test_a_learnt_mixture_finds_what_decides(name: str) -> None:
    """Relevance follows from one column alone: the learnt score ranks by it."""
    deciding = torch.from_numpy(rng.random((300, 12)).astype(np.float32)) ** 4
    known = made(300, **{name.replace(" ", "_"): deciding})
    relevant = (deciding > 0.4) & known.present
    score = Mixture.of_beta(SIGNALS, 0.7).learnt(known, relevant).score(known)
    first = relevant.gather(1, score.argmax(1, keepdim=True))[relevant.any(1)]
    assert float(first.float().mean()) > 0.9


def test_every_term_has_a_name_a_start_and_a_scale() -> None:
    terms = Terms(SIGNALS)
    sizes = {len(terms.names), len(terms.start), len(terms.scale), len(terms.owners)}
    assert sizes == {terms.of(made()).shape[-1]}
    assert len(set(terms.names)) == len(terms.names)


def test_the_parts_of_a_score_add_up_to_it() -> None:
    known = made()
    size = len(Terms(SIGNALS).names)
    mixture = replace(Mixture.of_beta(SIGNALS, 0.7), weights=torch.randn(size))
    total = mixture.parts(known).sum(-1)
    assert torch.allclose(total[known.present], mixture.score(known)[known.present], atol=1e-5)


def test_only_the_owner_of_a_weight_gets_its_part() -> None:
    mixture = Mixture.of(SIGNALS, {"weights": {"memory": 2.0}, "calibration": [1, 0, 0, 0]})
    known = made()
    parts = dict(zip(mixture.terms.parts, mixture.parts(known).unbind(-1), strict=True))
    assert torch.allclose(parts.pop("memory")[known.present], 2 * column(known, "memory")[known.present])
    assert not any(part.any() for part in parts.values())
    both = {"weights": {"classifier × log memory": 1.0}, "calibration": [1, 0, 0, 0]}
    product = made(log_memory=torch.rand(40, 12))
    parts = Mixture.of(SIGNALS, both).parts(product)
    assert torch.allclose(parts[..., 1], parts[..., 2])  # half of each


def test_weights_are_stored_by_name() -> None:
    mixture = Mixture.of_beta(SIGNALS, 0.7)
    stored = mixture.stored()
    assert stored["weights"]["classifier"] == pytest.approx(0.7)
    again = Mixture.of(SIGNALS, stored)
    assert torch.equal(again.weights, mixture.weights)
    assert torch.equal(again.calibration.u, mixture.calibration.u)


@pytest.mark.parametrize(
    "changed",
    [
        {"weights": {"telepathy": 1.0}, "calibration": [1, 0, 0, 0]},
        {"weights": {}, "calibration": [1, 0, 0]},
        {"weights": {"memory": float("nan")}, "calibration": [1, 0, 0, 0]},
        {"weights": {}, "calibration": [1, 0, 0, 0], "seen": {"telepathy": 1.0}},
        {"weights": {}, "calibration": [1, 0, 0, 0], "seen": {"bias": float("inf")}},
    ],
)
def test_a_stored_mixture_that_does_not_fit(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="unknown|finite|calibration"):
        Mixture.of(SIGNALS, changed)
