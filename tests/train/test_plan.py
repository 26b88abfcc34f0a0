"""Plans: every setting can be planned, nothing is changed by it, and the arithmetic follows the sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mufin import Catalogue, Config, fit, plan
from mufin.encode.cache_folder import cache_folder
from mufin.errors import UsageError
from mufin.train.plan import STAGES, Plan, Stage, planned
from mufin.train.rates import Encoding, Rates, Sizes, Steps


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("text.train_layers=1", "finetune.encoder_epochs=1", "finetune.label_encoders=false"),
        ("text.train_layers=all", "vision.train_layers=1", "finetune.chunk=8", "pretrain.loss=margin"),
        ("modalities=text", "finetune.batches=clustered", "finetune.refresh=1"),
        ("modalities=image", "rank.beta=learnt", "rank.cross=none"),
        ("embed.fusion=early", "pretrain.epochs=0", "run.validation=0"),
        ("text.words=true", "memory.neighbours=5", "memory.loss=0.5", "rank.alpha=one"),
        (
            "text.train_layers=1",
            "text.pretrained_similarity=true",
            "rank.start=centroid",
            "run.pictures=false",
        ),
    ],
    ids=lambda changes: " ".join(changes) or "defaults",
)
def test_every_kind_of_training_can_be_planned(
    changes: tuple[str, ...], shop: Catalogue, tiny_config: Config
) -> None:
    before = torch.get_rng_state()
    found = plan(shop, tiny_config.override(changes))
    assert torch.equal(before, torch.get_rng_state())
    assert [stage.name for stage in found.stages] == list(STAGES)
    seconds = {stage.name: stage.seconds for stage in found.stages}
    assert all(value > 0 for name, value in seconds.items() if name != "pre-training")
    assert (seconds["pre-training"] > 0) == ("pretrain.epochs=0" not in changes)
    assert 1e8 < found.memory < 1e10
    assert found.disk == sum(found.disk_parts.values()) > 0


def test_a_plan_foretells_the_model_folder_and_the_cache(
    shop: Catalogue, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "cache"))
    config = tiny_config.override(["text.words=true", "memory.neighbours=5"])
    first = plan(shop, config)
    assert first.cached == 0
    assert not cache_folder().exists()
    fit(shop, config, tmp_path / "run", quiet=True)
    assert first.disk_parts["model"] == pytest.approx(size_of(tmp_path / "run"), rel=0.1)
    assert first.disk_parts["cache"] == pytest.approx(size_of(cache_folder()), rel=0.3)
    quick = plan(shop, config, quick=True)
    assert quick.disk_parts["model"] == pytest.approx(first.disk_parts["model"], rel=0.05)
    assert quick.memory == pytest.approx(first.memory, rel=0.3)
    again = plan(shop, config)
    assert (again.cached, again.disk_parts["cache"]) == (1, 0)


STEP = Steps(pretrain=1.0, finetune=2.0, point=0.001, label=0.002)
SIZES = Sizes(10_000, 5000, 10_000, 5000, 0, 40_000, 15_000, 1.0)
RATES = Rates(
    SIZES, {"texts": Encoding(15_000, 5000, 0.01, 0.001, 1000, 15_000)}, 3.0, 0.0, STEP, STEP, 0.0, 0.0, 1e-9,
    5.0, 1.0, 0.0, 0.0, False, 10_000_000, 0, 0.0, 1_000_000, 100.0, 0.0, 1_000_000_000,
)  # fmt: skip


def test_time_follows_epochs_and_sizes() -> None:
    config = Config.preset("paper").override(["memory.loss=0"])

    def seconds(name: str, config: Config = config, sizes: Sizes = SIZES, rates: Rates = RATES) -> float:
        return next(stage.seconds for stage in planned(config, sizes, rates).stages if stage.name == name)

    assert seconds("encoding") == pytest.approx(3 + 5000 * 0.01 + 15_000 * 0.001)
    embedding = 10_000 * 0.001 + 5000 * 0.002
    assert seconds("shortlists") == pytest.approx(embedding + 1e-9 * 10_000 * 5000)
    held, validations = 200, 10
    checks = validations * (held * 0.001 + 5000 * 0.002)
    assert seconds("fine-tuning") == pytest.approx(20 * 50 * 2.0 + checks)
    assert seconds("pre-training") == pytest.approx(200 * (5 * 1.0 + embedding) + checks)
    fewer = config.override(["run.batches=10"])
    assert seconds("fine-tuning", fewer) == pytest.approx(20 * 10 * 2.0 + checks)
    twice = replace(SIZES, points=20_000, labels=10_000, used_points=20_000)
    assert seconds("assembling", sizes=twice) == pytest.approx(2 * seconds("assembling"))


def test_memory_grows_by_the_arrays_of_the_catalogue() -> None:
    config = Config.preset("paper")
    assert planned(config, SIZES, RATES).memory == pytest.approx(RATES.peak, rel=0.01)
    larger = planned(config, replace(SIZES, labels=1_005_000), RATES)
    tuning = next(stage for stage in larger.stages if stage.name == "fine-tuning")
    eta = 3 * 4 * 192 * 1_000_000
    assert tuning.memory > eta
    assert larger.memory_parts["optimizer"] == pytest.approx(eta, rel=0.01)
    assert larger.disk_parts["model"] == 1_000_000 + 1_005_000 * 100


def made(parts: dict[str, int], memory: int, disk: int = 0, cache: int = 0) -> Plan:
    return Plan([Stage("encoding", 1, memory, 0, 0)], parts, {"cache": cache, "model": disk}, 0.0)


@pytest.mark.parametrize(
    ("part", "remedy"),
    [
        ("features", "vision.size"),
        ("labels", "embed.dim"),
        ("optimizer", "rank.alpha=one"),
        ("shortlists", "retrieve.shortlist"),
        ("training steps", "finetune.batch"),
    ],
)
def test_what_cannot_fit_stops_and_names_the_setting(part: str, remedy: str) -> None:
    found = made({"features": 1, "training steps": 2, part: 3_000_000_000}, 4_000_000_000)
    with pytest.raises(UsageError, match=rf"needs about 4.0 GB of memory, and 2.0 GB are free.*{remedy}"):
        found.check(2_000_000_000, None, None)
    found.check(5_000_000_000, 0, 0)


def test_a_full_disk_stops_a_training_before_it_starts() -> None:
    found = made({}, 0, disk=3_000_000, cache=5_000_000)
    with pytest.raises(UsageError, match="3 MB to the run folder, and 2 MB are free"):
        found.check(None, 2_000_000, None)
    with pytest.raises(UsageError, match="5 MB of the cache, and 4 MB are free.*MUFIN_CACHE"):
        found.check(None, None, 4_000_000)
    found.check(None, 3_000_000, 5_000_000)
