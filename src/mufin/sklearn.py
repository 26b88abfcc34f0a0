"""MufinClassifier: train and ask a model through the interface of scikit-learn (extra `sklearn`).

>>> from mufin.sklearn import MufinClassifier
>>> MufinClassifier(k=5)
MufinClassifier(k=5)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix, issparse

from mufin.config import Config
from mufin.data.catalogue import Catalogue
from mufin.data.convert import as_item, as_items, is_missing
from mufin.data.item import Item
from mufin.data.items import Items
from mufin.errors import InputTypeError, UsageError
from mufin.train.fit import fit

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise ImportError('MufinClassifier needs scikit-learn; run `pip install "mufin[sklearn]"`') from None

if TYPE_CHECKING:
    from mufin.data.convert import Frame, ItemLike

    X = Iterable[ItemLike] | Frame

Form = Literal["lists", "dense", "sparse", "single"]


class MufinClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not typed
    """Rank labels for items of text and images, as a scikit-learn classifier.

    `X` is a list, array, or data frame of items, as for `Mufin.recommend`. `Y` is a list of lists of labels,
    an indicator matrix (dense or sparse), or one label per item; `predict` answers in the same form.

    After `fit`: `classes_`, the labels in order, and `model_`, the `Mufin` itself.
    """

    def __init__(
        self,
        config: str | Config = "best",
        settings: Sequence[str] = (),
        k: int = 100,
        threshold: float = 0.5,
        labels: Mapping[Any, Any] | None = None,
        random_state: int | None = None,
    ) -> None:
        self.config = config  # a preset by name, or settings
        self.settings = settings  # changes to it: ["finetune.epochs=10"]
        self.k = k  # labels per item that `predict_proba` returns; all others get 0
        self.threshold = threshold  # probability from which `predict` returns a label, unless Y was single
        self.labels = labels  # label → its item, where it is more than the text of its name
        self.random_state = random_state  # seed; None: that of the settings

    def fit(self, X: X, Y: Any) -> Self:
        """Train a model on these items and their labels."""
        items = _rows(X)
        form, classes, relevance = _relevance(Y)
        if len(items) != relevance.shape[0]:
            raise UsageError(f"{len(items)} items, but labels of {relevance.shape[0]}; give one row per item")
        if not len(classes):
            raise UsageError("no item has a label; there is nothing to learn from")
        names = [str(name) for name in classes.tolist()]
        if len(set(names)) < len(names):
            raise UsageError("two labels have the same name as text, such as 1 and '1'; rename one")
        described = self._described(classes.tolist(), names)
        pairs = {
            str(row): [names[label] for label in relevance[row].indices.tolist()]
            for row in np.flatnonzero(np.diff(relevance.indptr)).tolist()
        }
        numbered = [replace(item, id=str(row), related=()) for row, item in enumerate(items)]
        catalogue = Catalogue.build(numbered, described, train=pairs)
        self.model_ = fit(catalogue, self._config(), quiet=True)
        self.classes_, self.form_ = classes, form
        return self

    def _config(self) -> Config:
        config = self.config if isinstance(self.config, Config) else Config.preset(self.config)
        seed = [] if self.random_state is None else [f"seed={self.random_state}"]
        return config.override([*self.settings, *seed])

    def _described(self, labels: list[Any], names: list[str]) -> list[Item]:
        """Return the items of all labels: those given, else the name of the label as a text."""
        given = dict(self.labels or {})
        if unknown := [label for label in given if label not in set(labels)]:
            raise UsageError(f"labels describe {unknown[0]!r}, which no item has; remove it")
        return [
            replace(as_item(given.get(label, name)), id=name)
            for label, name in zip(labels, names, strict=True)
        ]

    def predict_proba(self, X: X) -> csr_matrix:
        """Return the probabilities of the k best labels of each item, (n, L) sparse; all others are 0."""
        check_is_fitted(self)
        hits = self.model_.recommend(_rows(X), self.k)
        place = {str(name): column for column, name in enumerate(self.classes_.tolist())}
        rows = np.repeat(np.arange(len(hits)), [len(some) for some in hits])
        columns = np.array([place[hit.label] for some in hits for hit in some], np.int64)
        values = np.array([hit.probability for some in hits for hit in some], np.float64)
        found = csr_matrix((values, (rows, columns)), (len(hits), len(self.classes_)))
        found.sort_indices()
        return found

    def predict(self, X: X) -> Any:
        """Return the labels of each item in the form of Y.

        One label per item is the most probable one; lists and indicator matrices have all labels with a
        probability of at least `threshold`.
        """
        probabilities = self.predict_proba(X)
        if self.form_ == "single":
            return self.classes_[_best(probabilities)]
        chosen = probabilities.copy()
        chosen.data = chosen.data >= self.threshold
        chosen.eliminate_zeros()
        if self.form_ in ("dense", "sparse"):
            indicator = csr_matrix(chosen, dtype=np.int64)
            return indicator if self.form_ == "sparse" else indicator.toarray()
        chosen.sort_indices()
        return [
            self.classes_[chosen.indices[start:end]].tolist()
            for start, end in zip(chosen.indptr[:-1], chosen.indptr[1:], strict=True)
        ]

    def score(self, X: X, Y: Any, sample_weight: npt.ArrayLike | None = None) -> float:
        """Return P@1, the share of items whose most probable label is right: accuracy for single labels."""
        best = self.classes_[_best(self.predict_proba(X))].tolist()
        _, classes, relevance = _relevance(Y)
        names = classes.tolist()
        right = [
            label in {names[column] for column in relevance[row].indices.tolist()}
            for row, label in enumerate(best)
        ]
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        return float(np.average(np.array(right, np.float64), weights=weights))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # items are text and images, not rows of numbers
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = True
        tags.classifier_tags.multi_label = True
        tags.non_deterministic = False
        return tags


def _rows(X: X) -> Items:
    items, single = as_items(X)
    if single:
        raise InputTypeError("X is a single item; pass a list of items, such as [item]")
    return items


def _best(probabilities: csr_matrix) -> npt.NDArray[np.int64]:
    """Return the column of the largest value per row."""
    best: npt.NDArray[np.int64] = np.asarray(probabilities.argmax(axis=1), np.int64).ravel()
    return best


def _relevance(Y: Any) -> tuple[Form, npt.NDArray[Any], csr_matrix]:
    """Return the form of Y, its labels in order, and which items have which, (n, L)."""
    if _is_column(Y):
        Y = np.asarray(Y).ravel()
    if issparse(Y) or getattr(Y, "ndim", 1) == 2:
        values: Any = Y if issparse(Y) else np.asarray(Y)
        if values.dtype.kind not in "biuf":
            raise InputTypeError(f"an indicator matrix of {values.dtype}; expected 0 and 1")
        matrix = csr_matrix(values)
        matrix.eliminate_zeros()
        if (matrix.data != 1).any():
            raise UsageError("an indicator matrix holds numbers other than 0 and 1")
        return "sparse" if issparse(Y) else "dense", np.arange(matrix.shape[1]), matrix
    rows = Y.tolist() if hasattr(Y, "tolist") else list(Y)
    listed = [isinstance(row, list | tuple | set | frozenset | np.ndarray) for row in rows]
    if any(listed) and not all(listed):
        row = listed.index(False)
        raise InputTypeError(
            f"row {row} of Y is {rows[row]!r}, but other rows are lists; write [{rows[row]!r}]"
        )
    labels = [list(row) for row in rows] if any(listed) else [[row] for row in rows]
    labels = [[label for label in row if not is_missing(label)] for row in labels]
    flat = [label for row in labels for label in row]
    _check_alike(flat)
    classes = np.unique(np.array(flat)) if flat else np.array([])
    place = {label: column for column, label in enumerate(classes.tolist())}
    counts = np.array([len(row) for row in labels], np.int64)
    columns = [place[label] for label in flat]
    ones = np.ones(len(flat), np.int64)
    matrix = csr_matrix((ones, (np.repeat(np.arange(len(rows)), counts), columns)), (len(rows), len(classes)))
    return "lists" if any(listed) else "single", classes, csr_matrix(matrix, dtype=bool)


def _is_column(Y: Any) -> bool:
    """Return whether Y is a column (n, 1) of labels; one of 0 and 1 is an indicator of a single label."""
    if issparse(Y) or getattr(Y, "ndim", 1) != 2 or Y.shape[1] != 1:
        return False
    return not np.isin(np.asarray(Y), [0, 1]).all()


def _check_alike(labels: list[Any]) -> None:
    """Raise an error for labels of several types, since an array would turn numbers into strings."""
    kinds = {type(label) for label in labels}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputTypeError(f"labels of several types ({names}); use one, for example str")
