"""A part of the train split that stands in for the test split: settings are chosen there."""

from __future__ import annotations

import re

import numpy as np

from mufin import Catalogue

SHARE = 0.15
VARIANTS = {"outline", "fill", "filled", "off", "alt", "variant", "solid"}  # words for forms of a thing


def family(title: str) -> str:
    """What variants of a thing have in common: "Battery 2" and "battery off" are of one family.

    >>> family("Battery 2"), family("battery off"), family("42")
    ('battery', 'battery', '42')
    """
    words = re.findall(r"\w+", title.lower())
    kept = [word for word in words if not word.isdigit() and word not in VARIANTS] or words
    return " ".join(sorted(word.removesuffix("s") if len(word) > 3 else word for word in kept))


def sliced(catalogue: Catalogue) -> Catalogue:
    """The train split cut in two, whole families of titles at a time; nothing of the test split is left.

    Where the labels are the items, a pair of the new test split is taken out of the new train split in both
    directions, as in the split that it stands in for.
    """
    train = catalogue.split("train")
    families = [family(" ".join(catalogue.items[int(row)].texts[:1])) for row in train.members]
    group = np.unique(families, return_inverse=True)[1]
    away = (np.random.default_rng(99).random(group.max() + 1) < SHARE)[group]
    names = [catalogue.items.ids[int(row)].as_py() for row in train.members]
    labels = catalogue.labels.ids.to_pylist()
    rows = np.split(train.relevance.indices, train.relevance.indptr[1:-1])
    pairs = [(name, [labels[l] for l in row]) for name, row in zip(names, rows, strict=True)]
    test = [pair for pair, out in zip(pairs, away, strict=True) if out]
    rest = [pair for pair, out in zip(pairs, away, strict=True) if not out]
    if catalogue.labels is catalogue.items:
        tested = {(label, name) for name, row in test for label in row}
        rest = [(name, [label for label in row if (name, label) not in tested]) for name, row in rest]
    own = None if catalogue.labels is catalogue.items else catalogue.labels
    return Catalogue.build(catalogue.items, own, train=rest, test=test)
