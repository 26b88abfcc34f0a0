"""Tokens for the letter case of a text, for encoders that lower-case their input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

N_STYLES = 7
UNUSED_TOKEN = "[unused{}]"  # tokens reserved in BERT's vocabularies


def case_style(text: str) -> int:
    """Return the case style of a text.

    0 no letters, 1 UPPER CASE, 2 Title Case, 3 Word, 4 Sentence case, 5 some Capitals, 6 lower case.

    >>> [case_style(text) for text in ("42", "USB", "Red Shoe", "Shoe", "Red shoe", "a USB hub", "shoe")]
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


def case_tokens(tokenizer: Any) -> list[int]:
    """Return the id of an unused token per case style; empty if the vocabulary has no unused tokens."""
    known = tokenizer.get_vocab()
    ids = [known.get(UNUSED_TOKEN.format(way)) for way in range(N_STYLES)]
    return [] if None in ids else ids


def insert_case_tokens(ids: Sequence[list[int]], texts: Sequence[str], tokens: list[int]) -> list[list[int]]:
    """Insert the token of each text's case style after its first token."""
    return [[*row[:1], tokens[case_style(text)], *row[1:]] for row, text in zip(ids, texts, strict=True)]
