"""How a text is written, for encoders that read everything in lower case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WAYS = 7
SPARE = "[unused{}]"  # tokens that BERT's vocabularies keep free


def way_of_writing(text: str) -> int:
    """0 no letters, 1 UPPER CASE, 2 Title Case, 3 Word, 4 Sentence case, 5 some Capitals, 6 lower case.

    >>> [way_of_writing(text) for text in ("42", "USB", "Red Shoe", "Shoe", "Red shoe", "a USB hub", "shoe")]
    [0, 1, 2, 3, 4, 5, 6]
    """
    capital = [word[0].isupper() for word in text.split() if word[0].isalpha()]
    if not capital:
        return 0
    if text.isupper() and len(text) > 1:
        return 1
    if all(capital):
        return 2 if len(capital) > 1 else 3
    if capital[0]:
        return 4
    return 5 if any(capital) else 6


def tokens_of_case(tokenizer: Any) -> list[int]:
    """The id of a spare token for each way of writing; none where the vocabulary has no spare ones."""
    known = tokenizer.get_vocab()
    ids = [known.get(SPARE.format(way)) for way in range(WAYS)]
    return [] if None in ids else ids


def with_case(ids: Sequence[list[int]], texts: Sequence[str], tokens: list[int]) -> list[list[int]]:
    """Rows of token ids, the second of each being how its text is written."""
    return [[*row[:1], tokens[way_of_writing(text)], *row[1:]] for row, text in zip(ids, texts, strict=True)]
