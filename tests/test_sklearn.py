"""MufinClassifier: forms of X and Y, the checks of scikit-learn, pipelines and searches."""

from __future__ import annotations

import pickle
import warnings
from contextlib import suppress
from typing import Any
from unittest import SkipTest

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix, issparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from made import picture
from mufin import Config, Item
from mufin.errors import UsageError
from mufin.sklearn import MufinClassifier

TITLES = [f"{colour} {shape}" for colour in ("red", "green", "blue") for shape in ("circle", "bar")] * 4
COLOURS = [title.split()[0] for title in TITLES]
WORDS = [title.split() for title in TITLES]
ALL_WORDS = ["bar", "blue", "circle", "green", "red"]
MATRIX = np.array([[int(word in words) for word in ALL_WORDS] for words in WORDS])


@pytest.fixture(scope="module")
def quick(tiny_config: Config) -> Config:
    return tiny_config.override(["modalities=text", "pretrain.epochs=1", "finetune.epochs=2"])


@pytest.fixture(scope="module")
def classifier(tiny_config: Config) -> MufinClassifier:
    """Trained on lists of labels."""
    config = tiny_config.override(["pretrain.epochs=10", "finetune.epochs=10", "run.validation=0"])
    return MufinClassifier(config, threshold=0.3).fit(TITLES, WORDS)


def test_lists_of_labels(classifier: MufinClassifier) -> None:
    assert classifier.classes_.tolist() == ALL_WORDS
    found = classifier.predict(["red circle", Item(texts=["blue bar"])])
    assert [type(labels) for labels in found] == [list, list]
    assert set(found[0]) | set(found[1]) <= set(ALL_WORDS)
    assert classifier.score(TITLES, WORDS) > 0.8
    assert classifier.score(TITLES, [[] for _ in TITLES]) == 0


def test_probabilities_are_those_of_the_hits(classifier: MufinClassifier) -> None:
    found = classifier.predict_proba(TITLES[:3])
    assert issparse(found)
    assert found.shape == (3, 5)
    for row, hits in zip(found.toarray(), classifier.model_.recommend(TITLES[:3]), strict=True):
        assert {hit.label: pytest.approx(hit.probability) for hit in hits} == dict(
            zip(ALL_WORDS, row.tolist(), strict=True)
        )
    narrow = pickle.loads(pickle.dumps(classifier)).set_params(k=2)
    assert np.diff(narrow.predict_proba(TITLES[:3]).indptr).tolist() == [2, 2, 2]
    with pytest.warns(UserWarning, match="item 1 has no text"):
        assert narrow.predict_proba(["red", " "])[1].nnz == 0


@pytest.mark.parametrize("kind", [np.array, csr_matrix, pd.DataFrame])
def test_indicator_matrices(kind: Any, quick: Config) -> None:
    made = MufinClassifier(quick, labels={1: "blue things", 4: {"title": "red"}}).fit(TITLES, kind(MATRIX))
    assert made.classes_.tolist() == [0, 1, 2, 3, 4]
    assert made.model_.labels.items.texts.to_pylist()[:2] == [["0"], ["blue things"]]
    found = made.predict(TITLES)
    assert (found.shape, found.dtype, issparse(found)) == (MATRIX.shape, np.int64, kind is csr_matrix)
    assert found.min() >= 0
    assert found.max() <= 1
    assert 0 <= made.score(TITLES, kind(MATRIX)) <= 1


def test_one_label_each_and_all_forms_of_items(quick: Config) -> None:
    made = MufinClassifier(quick, random_state=3).fit(pd.DataFrame({"title": TITLES}), pd.Series(COLOURS))
    assert made.model_.config.seed == 3
    found = made.predict(TITLES)
    assert found.shape == (24,)
    assert set(found) <= set(COLOURS)
    for form in (np.array(TITLES), pd.Series(TITLES), [{"title": title} for title in TITLES]):
        assert made.predict(form).tolist() == found.tolist()
    assert made.score(TITLES, COLOURS) == pytest.approx(np.mean(found == np.array(COLOURS)))
    column = pd.DataFrame({"colour": COLOURS})
    assert clone(made).fit(TITLES, column).predict(TITLES).tolist() == found.tolist()
    numbers = [COLOURS.index(colour) for colour in COLOURS]
    assert clone(made).fit(TITLES, numbers).predict(TITLES).dtype.kind == "i"


def test_images(tiny_config: Config) -> None:
    config = tiny_config.override(["pretrain.epochs=1", "finetune.epochs=1"])
    shown = [picture(colour, "bar") for colour in COLOURS]
    found = MufinClassifier(config).fit(shown, COLOURS).predict(shown[:3])
    assert len(found) == 3


@pytest.mark.parametrize(
    ("items", "labels", "said"),
    [
        (TITLES, WORDS[1:], "24 items, but labels of 23"),
        (TITLES, [[]] * 24, "no item has a label"),
        (TITLES, [*WORDS[1:], "red"], "row 23 of Y is 'red', but other rows are lists; write \\['red'\\]"),
        (TITLES, [*COLOURS[1:], 3], "labels of several types \\(int, str\\)"),
        (TITLES, 2 * MATRIX, "other than 0 and 1"),
        ("red", ["red"], "X is a single item"),
        (np.zeros((24, 2)), WORDS, "ndarray .* is not an item"),
    ],
)
def test_bad_input(items: Any, labels: Any, said: str, quick: Config) -> None:
    with pytest.raises(UsageError, match=said):
        MufinClassifier(quick).fit(items, labels)


def test_not_fitted() -> None:
    with pytest.raises(NotFittedError):
        MufinClassifier().predict(["red"])


def test_it_is_cloned_and_pickled(classifier: MufinClassifier) -> None:
    fresh = clone(classifier)
    assert fresh.get_params()["threshold"] == 0.3
    assert not hasattr(fresh, "model_")
    assert repr(MufinClassifier(k=5)) == "MufinClassifier(k=5)"
    again = pickle.loads(pickle.dumps(classifier))
    assert again.predict(TITLES) == classifier.predict(TITLES)


def test_pipelines_and_searches(quick: Config) -> None:
    upper = FunctionTransformer(lambda titles: [title.lower() for title in titles])
    pipeline = make_pipeline(upper, MufinClassifier(quick))
    scores = cross_val_score(pipeline, [title.upper() for title in TITLES], COLOURS, cv=2)
    assert scores.shape == (2,)
    changes = {"settings": [["embed.dim=8"], ["embed.dim=16"]]}
    search = GridSearchCV(MufinClassifier(quick), changes, cv=KFold(2), error_score="raise")
    search.fit(TITLES, WORDS)
    assert search.best_estimator_.model_.config.embed.dim in (8, 16)
    assert len(search.cv_results_["mean_test_score"]) == 2


class Numbers(MufinClassifier):
    """Reads rows of numbers as words: the checks of scikit-learn train on numbers only."""

    def fit(self, X: Any, y: Any) -> Numbers:
        X, y = validate_data(self, X, y, multi_output=True)
        check_classification_targets(y)
        return super().fit(as_words(X), y)

    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict_proba(as_words(validate_data(self, X, reset=False)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        return super().score(X, y, sample_weight)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.allow_nan = True, False
        return tags


def as_words(rows: Any) -> list[str]:
    return [" ".join(f"x{column}y{value:.0f}" for column, value in enumerate(row)) for row in rows]


FAST = ["modalities=text", "pretrain.epochs=1", "finetune.epochs=1", "run.batches=1", "run.validation=0"]
EXPECTED_FAILURES = {
    "check_classifiers_train": "an accuracy of 0.83 of numbers is no task for one batch of a text encoder",
    "check_methods_subset_invariance": "sums in single precision differ by 2e-7; at most 1e-7 is allowed",
    "check_classifiers_multilabel_output_format_predict_proba": "probabilities are sparse",
    "check_classifier_multioutput": "rounds the probabilities, which are sparse",
}


def test_the_checks_of_scikit_learn(tiny_config: Config) -> None:
    classifier = Numbers(tiny_config.override(FAST))
    passed = []
    for estimator, check in estimator_checks_generator(classifier, mark=None):
        name = check.func.__name__
        with warnings.catch_warnings(), suppress(SkipTest):
            warnings.simplefilter("ignore")
            if name not in EXPECTED_FAILURES:
                check(estimator)
                passed.append(name)
    assert len(passed) > 45
