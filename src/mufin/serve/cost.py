"""Cost: how much work a request is, in units of one short text, which takes about 2 ms on one core."""

from __future__ import annotations

from collections.abc import Sequence

from mufin.serve.limits import LIMITS
from mufin.serve.problem import Problem

IMAGE = 3  # an image takes about as long as so many short texts
CHARS_PER_TOKEN = 4
TOKENS = 16  # of a short text
CHARS = 1000  # that the tokenizer splits in the time of a short text
HITS = 250  # that are ranked and written in that time
SLICE = 16  # computed at a time for a long request


def cost_of(texts: Sequence[str], images: int, tokens: int, k: int = 0) -> int:
    """What an item costs in a model that reads the first `tokens` tokens of a text.

    >>> cost_of(["oak desk"], 0, 128), cost_of(["oak desk"], 1, 128), cost_of(["word " * 200], 0, 128)
    (1, 4, 10)
    """
    read = (1 + min(len(text) // CHARS_PER_TOKEN, tokens) // TOKENS + len(text) // CHARS for text in texts)
    return max(1, sum(read) + IMAGE * images + k // HITS)


def check_cost(costs: Sequence[int], place: str) -> None:
    """Refuse a call that others would have to wait for; `place` is where its items stand: "items.{}"."""
    for number, cost in enumerate(costs):
        if cost > LIMITS.item_cost:
            most = f"at most {LIMITS.item_cost} are computed for an item; send fewer or shorter texts"
            raise Problem(413, f"{place.format(number)} costs {cost:,} units; {most}")
    if (total := sum(costs)) > LIMITS.cost:
        most = f"at most {LIMITS.cost:,} are computed for a call; send fewer items at a time"
        raise Problem(413, f"{place.format(f'0 to {len(costs) - 1}')} cost {total:,} units; {most}")


def slices(costs: Sequence[int], most: int = SLICE) -> list[slice]:
    """Runs of items that cost at most so much together; a costlier item stands alone.

    >>> slices([1, 1, 5, 1, 1], 3)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    found, first, total = [], 0, 0
    for number, cost in enumerate(costs):
        if number > first and total + cost > most:
            found.append(slice(first, number))
            first, total = number, 0
        total += cost
    return [*found, slice(first, len(costs))]
