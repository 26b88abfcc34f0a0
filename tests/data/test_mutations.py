"""Read a few seeded mutations of every data format; `python tests/fuzzing.py` runs many more."""

from __future__ import annotations

import fuzzing


def test_a_few_mutations_of_every_format() -> None:
    count = 4 * len(fuzzing.forms())
    outcome = fuzzing.run(fuzzing.EVERY, seed=1, first=0, count=count)
    assert outcome.good + outcome.refused == count, outcome.faults
