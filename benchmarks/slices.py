"""Split the train split in two, to choose settings without the test split."""

from __future__ import annotations

import re

import numpy as np

from mufin import Catalogue

TEST_FRACTION = 0.15
VARIANT_WORDS = {"outline", "fill", "filled", "off", "alt", "variant", "solid"}


def family(title: str) -> str:
    """What variants of a title have in common: "Battery 2" and "battery off" are one family.

    >>> family("Battery 2"), family("battery off"), family("42")
    ('battery', 'battery', '42')
    """
    words = re.findall(r"\w+", title.lower())
    kept = [word for word in words if not word.isdigit() and word not in VARIANT_WORDS] or words
    return " ".join(sorted(word.removesuffix("s") if len(word) > 3 else word for word in kept))


def sliced(catalogue: Catalogue) -> Catalogue:
    """Split `train` into a new `train` and `test` by title family; the original test split is dropped.

    An item without a title is a family of its own.

    If labels are items, pairs of the new test split are removed from the new train split in both directions,
    as in the original split.
    """
    train = catalogue.split("train")
    names = [catalogue.items.ids[int(row)].as_py() for row in train.members]
    titles = [" ".join(catalogue.items[int(row)].texts[:1]) for row in train.members]
    families = [family(title) if title else f"id {name}" for title, name in zip(titles, names, strict=True)]
    group = np.unique(families, return_inverse=True)[1]
    held_out = (np.random.default_rng(99).random(group.max() + 1) < TEST_FRACTION)[group]
    labels = catalogue.labels.ids.to_pylist()
    rows = np.split(train.relevance.indices, train.relevance.indptr[1:-1])
    pairs = [(name, [labels[l] for l in row]) for name, row in zip(names, rows, strict=True)]
    test = [pair for pair, out in zip(pairs, held_out, strict=True) if out]
    rest = [pair for pair, out in zip(pairs, held_out, strict=True) if not out]
    if catalogue.labels is catalogue.items:
        tested = {(label, name) for name, row in test for label in row}
        rest = [(name, [label for label in row if (name, label) not in tested]) for name, row in rest]
    own = None if catalogue.labels is catalogue.items else catalogue.labels
    return Catalogue.build(catalogue.items, own, train=rest, test=test)
