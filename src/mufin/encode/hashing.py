"""Words of many texts at once, and the CRC-32 of words, pairs of words and character n-grams."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mufin.ragged import Ints, offsets_of, ranges

Hashes = NDArray[np.uint32]

WORD = re.compile(r"\w+")
LONGEST_TEXT = 20_000  # characters
LONGEST_WORD = 64
GRAMS = (3, 4, 5)  # characters
BREAK = 0xD800  # between texts: half a surrogate pair is in no text and in no word
START = np.uint32(0xFFFFFFFF)  # of a CRC-32, and what it is inverted by in the end
LARGEST = np.array([0x7F, 0x7FF, 0xFFFF], np.uint32)  # character that UTF-8 writes in 1, 2, 3 bytes
LEAD = np.array([0x00, 0xC0, 0xE0, 0xF0], np.uint32)  # what the first of them begins with, by how many follow


@dataclass(frozen=True)
class Words:
    """The W lower-case words of some texts; word i has `codes[starts[i] : starts[i] + lengths[i]]`."""

    codes: NDArray[np.uint32]  # Unicode code points of all texts
    starts: Ints  # (W,)
    lengths: Ints  # (W,), at most 64
    text: Ints  # (W,), ascending: whose word it is

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """All runs of letters, digits and underscores, as `re` finds them.

        >>> words = Words.of(["Oak desk", "lamp"])
        >>> words.text.tolist(), words.lengths.tolist()
        ([0, 0, 1], [3, 4, 4])
        """
        joined = chr(BREAK).join(text[:LONGEST_TEXT] for text in texts).lower()
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        edges = np.flatnonzero(np.diff(_in_words()[codes], prepend=False, append=False))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        text = np.searchsorted(np.flatnonzero(codes == BREAK), starts)
        return cls(codes, starts, np.minimum(lengths, LONGEST_WORD), text)

    def hashes(self) -> Hashes:
        """(W,): the CRC-32 of each word in UTF-8."""
        return self._spelt(np.full(len(self.starts), START, np.uint32), self.starts, self.lengths) ^ START

    def pairs(self) -> tuple[Ints, Hashes]:
        """Words that follow one another in a text, with a space between: the text, the CRC-32."""
        first = np.flatnonzero(self.text[1:] == self.text[:-1])
        state = self._spelt(np.full(len(first), START, np.uint32), self.starts[first], self.lengths[first])
        state = _fed(state, np.full(len(first), ord(" "), np.uint32))
        return self.text[first], self._spelt(state, self.starts[first + 1], self.lengths[first + 1]) ^ START

    def grams(self) -> tuple[Ints, Hashes]:
        """Three to five characters of a word with a space on each side: the text, the CRC-32."""
        offsets = offsets_of(self.lengths + 2)
        padded = np.full(offsets[-1], ord(" "), np.uint32)
        padded[ranges(offsets[:-1] + 1, self.lengths)] = self.codes[ranges(self.starts, self.lengths)]
        left = (np.repeat(offsets[1:], self.lengths + 2) - np.arange(len(padded))).astype(np.uint8)
        text = np.repeat(self.text.astype(np.int32), self.lengths + 2)
        state, found = np.full(len(padded), START, np.uint32), []
        for n in range(max(GRAMS)):  # also across the ends of words, which is faster than to leave them out
            state = _fed(state[: len(padded) - n], padded[n:])
            if n + 1 in GRAMS:
                inside = left[: len(state)] > n
                found.append((text[: len(state)][inside], state[inside] ^ START))
        owners, hashes = zip(*found, strict=True)
        return np.concatenate(owners), np.concatenate(hashes)

    def _spelt(self, state: Hashes, starts: Ints, lengths: Ints) -> Hashes:
        """The states after these words too, letter by letter for all of them."""
        order = np.argsort(-lengths, kind="stable")
        state, starts, lengths = state[order], starts[order], lengths[order]
        for n in range(int(lengths.max(initial=0))):
            longer = int(np.searchsorted(-lengths, -n, side="left"))
            state[:longer] = _fed(state[:longer], self.codes[starts[:longer] + n])
        spelt = np.empty_like(state)
        spelt[order] = state
        return spelt


def words_of(text: str) -> list[str]:
    """The words of one text, the same that `Words` finds.

    >>> words_of("Oak desk, large")
    ['oak', 'desk', 'large']
    """
    return [word[:LONGEST_WORD] for word in WORD.findall(text[:LONGEST_TEXT].lower())]


def _fed(state: Hashes, codes: Hashes) -> Hashes:
    """The states of CRC-32 after one more character each, in UTF-8."""
    if not len(codes) or codes.max() < 0x80:
        return _after(state, codes)
    more = np.searchsorted(LARGEST, codes).astype(np.uint32)  # bytes behind the first
    state = _after(state, LEAD[more] | codes >> 6 * more)
    for left in (3, 2, 1):
        some = np.flatnonzero(more >= left)
        byte = np.uint32(0x80) | codes[some] >> np.uint32(6 * left - 6) & np.uint32(0x3F)
        state[some] = _after(state[some], byte)
    return state


def _after(state: Hashes, byte: Hashes) -> Hashes:
    """The states after one more byte each."""
    after: Hashes = _remainders()[(state ^ byte) & 0xFF] ^ state >> np.uint32(8)
    return after


@cache
def _remainders() -> Hashes:
    """CRC-32 of single bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0xEDB88320), table >> 1)
    return table


@cache
def _in_words() -> NDArray[np.bool_]:
    """Which code points are letters, digits or underscores."""
    every = np.arange(0x110000, dtype=np.uint32).tobytes().decode("utf-32-le", "surrogatepass")
    found = np.zeros(len(every), bool)
    for run in WORD.finditer(every):
        found[run.start() : run.end()] = True
    return found
