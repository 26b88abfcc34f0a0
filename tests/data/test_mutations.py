"""A few seeded mutations of every form of data; `python tests/fuzzing.py` makes as many as one likes."""

from __future__ import annotations

import fuzzing


def test_a_few_mutations_of_every_form() -> None:
    count = 4 * len(fuzzing.forms())
    outcome = fuzzing.run(fuzzing.EVERY, seed=1, first=0, count=count)
    assert outcome.good + outcome.refused == count, outcome.faults
