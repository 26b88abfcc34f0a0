"""benchmarks/accuracy.py on synthetic data, and no leak of test pairs into training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from mufin import Catalogue, Config, Item, fit
from mufin.evaluate.score import predict

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture
def worn_together() -> Catalogue:
    """Items as labels; the test pair (a, f) occurs in a set, but not in train."""
    items = [Item(name, [f"{name} thing"]) for name in "abcdef"]
    pairs = {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"], "d": ["e"], "e": ["d"]}
    sets = {"outfits": [["a", "b", "c"], ["d", "e"], ["a", "f"]]}
    return Catalogue.build(items, sets=sets, train=pairs, test={"a": ["f"], "f": ["a"]})


def test_leaks_are_counted_in_both_directions(worn_together: Catalogue) -> None:
    from measure import leaks

    found = leaks(worn_together)
    assert found is not None
    assert [*found.values()] == [2, 0, 0, 2, 0, 0]
    leaky = Catalogue.build(
        worn_together.items, train={"a": ["b"], "b": ["c"]}, test={"b": ["a"], "a": ["b"]}
    )
    found = leaks(leaky)
    assert found is not None
    assert [*found.values()] == [2, 1, 1, 0, 0, 0]  # pairs, same, reversed, in sets; no questions


def test_nothing_can_leak_if_labels_are_not_items(shop: Catalogue) -> None:
    from measure import leaks

    assert leaks(shop) is None


def test_training_sees_only_the_pairs_of_train(
    worn_together: Catalogue, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["mufin.train.fit"]
    seen: list[Any] = []
    original = module.training_data
    monkeypatch.setattr(module, "training_data", lambda *a: seen.append(original(*a)) or seen[-1])
    config = tiny_config.override(["memory.neighbours=2", "run.validation=0"])
    model = fit(worn_together, config, quiet=True)
    train = worn_together.split("train")
    assert (seen[0].relevance != train.relevance).nnz == 0
    assert len(model.points) == len(train)  # only training points vote


def test_the_slice_hides_its_test_pairs_in_both_directions() -> None:
    from measure import leaks
    from slices import sliced

    names = [f"i{number}" for number in range(60)]
    pairs = {name: [other for other in names if other != name][:20] for name in names}
    cut = sliced(Catalogue.build([Item(name, [name]) for name in names], train=pairs, test={"i0": ["i1"]}))
    found = leaks(cut)
    assert found is not None
    assert found["test pairs"] > 0
    assert found["same in train"] == found["reversed in train"] == 0


def test_saved_points_reproduce_the_metrics(tmp_path: Path) -> None:
    from measure import COMPARED, Kept
    from mufin.evaluate import metrics

    rng = np.random.default_rng(0)
    truth = csr_matrix(rng.random((40, 30)) < 0.1)
    train = csr_matrix(rng.random((60, 30)) < np.linspace(0, 0.3, 30))
    labels = np.argsort(rng.random((40, 30)), axis=1)[:, :20]
    Kept.of(labels, truth, train).save(tmp_path / "new" / "a.npz")
    kept = Kept.load(tmp_path / "new" / "a.npz")
    figures = metrics.evaluate(labels, truth)
    assert (100 * kept.metrics.mean(axis=0)) == pytest.approx([figures[name] for name in COMPARED])
    rare = set(np.flatnonzero(train.toarray().sum(axis=0) <= 5))
    shares = []
    for row, best in zip(truth.toarray(), labels[:, :10], strict=True):
        wanted = rare & set(np.flatnonzero(row))
        shares += [len(wanted & set(best)) / len(wanted)] if wanted else []
    assert kept.figures() == pytest.approx({"tail R@10": 100 * np.mean(shares)})


def test_paired_intervals_contain_the_difference() -> None:
    from measure import Kept, paired_difference

    rng = np.random.default_rng(0)
    base = rng.random((400, 10)) < 0.3
    better = base | (rng.random((400, 10)) < 0.1)

    truth = csr_matrix(np.tile(np.arange(20) < 10, (400, 1)))

    def kept(hits: np.ndarray) -> Kept:
        """Ten predictions for points with ten relevant labels; a miss is one of ten other labels."""
        labels = np.arange(10) + np.where(hits, 0, 10)
        return Kept.of(labels, truth, truth)

    found = paired_difference([kept(better)], [kept(base)])
    for name, (mean, low, high) in found.items():
        assert 0 < low < mean < high, name
    assert found["P@1"][0] == pytest.approx(100 * (better[:, 0].mean() - base[:, 0].mean()), abs=1e-3)
    same = paired_difference([kept(base), kept(base)], [kept(base)])
    assert same == {"P@1": [0, 0, 0], "P@5": [0, 0, 0], "R@10": [0, 0, 0]}


def test_a_row_never_mixes_runs_of_different_settings(tmp_path: Path) -> None:
    from tables import Results

    results = Results(tmp_path / "accuracy-shop.json")
    for seed in range(3):
        results.add("test", "paper", {"seed": seed, "settings": ["pretrain.lr=1e-4"], "P@1": 10.0})
    results.add("test", "paper", {"seed": 0, "settings": ["pretrain.lr=1e-3"], "P@1": 30.0})
    assert [run["P@1"] for run in results.runs("test", "paper")] == [30.0]
    results.add("test", "paper", {"seed": 1, "settings": ["pretrain.lr=1e-3"], "P@1": 32.0})
    assert [run["P@1"] for run in results.runs("test", "paper")] == [30.0, 32.0]


def test_predictions_have_the_probabilities_of_recommend(shop: Catalogue, tiny_model: Any) -> None:
    points = shop.split("test")
    found = predict(tiny_model, shop, points, k=3)
    items = [shop.items[int(row)] for row in points.members[:4]]
    hits = tiny_model.recommend(items, k=3)
    expected = [[hit.probability for hit in row] for row in hits]
    assert found.probability[:4] == pytest.approx(np.array(expected), abs=1e-5)


def test_questions_are_answered_by_models_and_peers(
    worn_together: Catalogue, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import accuracy

    worn_together.write(tmp_path / "shop")
    asked = {"query": ["a", "b"], "choices": ["c", "d", "e", "f"], "answer": 0}
    (tmp_path / "shop" / "fitb_small.jsonl").write_text(json.dumps(asked) + "\n")
    shop = Catalogue.read(tmp_path / "shop")
    monkeypatch.setattr(accuracy, "settings_of", lambda *_: tiny_config)
    for row in ("fast", "attribute pairs", "TF-IDF similarity"):
        found = accuracy.measure(accuracy.Job("fitb", row, 0), shop, tmp_path, "cpu")
        assert found["fitb_small"] in (0, 100), row
    assert found.keys() == {"seconds", "fitb_small"}


def test_rows_run_in_parallel_and_are_merged(
    shop: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import accuracy

    shop.write(tmp_path / "shop")
    rows = ["popularity", "TF-IDF neighbours"]

    def run(*more: str) -> dict[str, Any]:
        where = ["--keep", str(tmp_path / "keep"), "--results", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["accuracy.py", str(tmp_path / "shop"), *rows, *more, *where])
        accuracy.main()
        found: dict[str, Any] = json.loads((tmp_path / "accuracy-shop.json").read_text())
        return found

    first = run("--jobs", "2")
    assert set(first["test"]) == set(rows)
    assert first["test"]["popularity"][0].keys() >= {"P@1", "R@10", "seed", "seconds"}
    assert run() == first  # nothing runs twice
    (tmp_path / "accuracy-shop.json").unlink()
    assert run("--jobs", "0")["test"] == first["test"]  # the saved parts are enough
    assert "| popularity | " in (tmp_path / "accuracy-shop.md").read_text()
