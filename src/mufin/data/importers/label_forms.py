"""Labels that look like several labels in one cell, or like another label in other letters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from mufin.data.check_report import Problem, add_warning

SEPARATORS = ("|", ";", ",")
LIST = re.compile(r"\[.*\]|\{.*\}", re.DOTALL)  # as JSON and Python write lists and sets


def odd_labels(rows: Sequence[Sequence[str]], place: str) -> list[Problem]:
    """Return warnings about the labels of all rows.

    >>> [problem] = odd_labels([["desks; oak"], ["lamps; steel"], ["rugs"]], "tags")
    >>> problem.message
    'label contains ";"; if that separates labels, pass --separator ";"'
    """
    found: list[Problem] = []
    names = dict.fromkeys(label for labels in rows for label in labels)
    lists = {name: None for name in names if LIST.fullmatch(name)}
    message = 'label looks like a list; write such a cell as "a|b", or import JSON lines or Parquet'
    add_warning(found, message, place, list(lists))
    for separator in SEPARATORS:
        message = f'label contains "{separator}"; if that separates labels, pass --separator "{separator}"'
        joined = [name for name in _joined(rows, names, separator) if name not in lists]
        add_warning(found, message, place, joined)
    times = Counter(name.casefold() for name in names)
    alike = sorted((name for name in names if times[name.casefold()] > 1), key=str.casefold)
    add_warning(found, "labels differ only in capital letters, and count as different labels", place, alike)
    return found


def _joined(rows: Sequence[Sequence[str]], names: Collection[str], separator: str) -> list[str]:
    """Return labels that a separator joins: those of most rows, or those whose parts are all labels."""
    labelled = [labels for labels in rows if labels]
    single = [labels[0] for labels in labelled if len(labels) == 1 and separator in labels[0]]
    if 2 * len(single) > len(labelled):
        return list(dict.fromkeys(single))
    holding = [name for name in names if separator in name]
    return [name for name in holding if all(part.strip() in names for part in name.split(separator))]
