"""Texts as sparse vectors of hashed words and character n-grams."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from mufin.data.formats.schema import flatten
from mufin.data.items import Items
from mufin.data.ragged import Ints, offsets_of, ranges
from mufin.encode.rows import normalised

HALF = 1 << 17  # columns for words and pairs of words; as many again for character n-grams
WIDTH = 2 * HALF
TITLES = 1 << 20  # columns for words of titles: a collision would put words into a title
BLOCK = 1 << 20  # bytes of texts counted at a time, of which an item has at least ITEM: at most 2,049 items
ITEM = 512
FEW = 256  # texts that are read word by word in less time than all at once
MANY = 50_000  # texts that several threads share
MOST_THREADS = 8  # each holds some 100 MB


def inverse_frequency(items: Items) -> NDArray[np.float32]:
    """idf (2¹⁸,) = log((1 + n) / (1 + df)) of each column, df of the n items having it."""
    seen = np.bincount(count(items).indices, minlength=WIDTH)
    return np.log((1 + len(items)) / (1 + seen)).astype(np.float32)


def tfidf(items: Items, idf: NDArray[np.float32]) -> csr_matrix:
    """(n, 2¹⁸) unit rows v = N([N(t ⊙ idf) of words, N(t ⊙ idf) of characters]), t = 1 + log(count).

    A zero row for an item without words.
    """
    found = count(items)
    found.data = ((1 + np.log(found.data)) * idf[found.indices]).astype(np.float32)
    halves = found.indices >= HALF
    rows = np.repeat(np.arange(len(items)), np.diff(found.indptr))
    place = 2 * rows + halves
    norms = np.sqrt(np.bincount(place, found.data**2, 2 * len(items)))
    found.data /= np.maximum(norms, 1e-12).astype(np.float32)[place]
    return normalised(found)


def title_words(items: Items) -> csr_matrix:
    """(n, 2²⁰): one where the first text of an item has a word that is hashed there."""
    found = _counted(*_titles(items), TITLES, _title_columns)
    found.data[:] = 1
    return found


def _titles(items: Items) -> tuple[Ints, pa.Array]:
    """First texts, as offsets (n + 1,) and strings."""
    if len(items) < FEW:
        texts = [next(iter(some or ()), "") for some in items.texts.to_pylist()]
        return np.arange(len(items) + 1), pa.array(texts, pa.string())
    offsets, flat = flatten(items.texts)
    has = np.diff(offsets) > 0
    return offsets_of(has), flat.take(pa.array(offsets[:-1][has])).combine_chunks()


def count(items: Items) -> csr_matrix:
    """(n, 2¹⁸): how often each item's texts have what is hashed to each column."""
    return _counted(*items.flat_texts(), WIDTH, _columns)


def _title_columns(texts: list[str]) -> tuple[Ints, Hashes]:
    """The text and the column of each word."""
    if len(texts) < FEW:
        rows = [[crc32(word.encode()) % TITLES for word in words_of(text)] for text in texts]
        return _end_to_end([np.array(row, np.uint32) for row in rows])
    words = Words.of(texts)
    return words.text, words.hashes() % TITLES


def _columns(texts: list[str]) -> tuple[Ints, Hashes]:
    """The text and the column of each word, pair of words and n-gram, n-grams in the second half."""
    if len(texts) < FEW:
        return _end_to_end([_columns_of(words_of(text)) for text in texts])
    words = Words.of(texts)
    (of_pair, pairs), (of_gram, grams) = words.pairs(), words.grams()
    columns = [words.hashes() % HALF, pairs % HALF, grams % HALF + HALF]
    return np.concatenate([words.text, of_pair, of_gram]), np.concatenate(columns)


def _columns_of(words: list[str]) -> Hashes:
    pairs = [crc32(f"{a} {b}".encode()) % HALF for a, b in pairwise(words)]
    return np.concatenate([np.array(pairs, np.uint32), *map(_pieces, words)])


@lru_cache(maxsize=1 << 12)
def _pieces(word: str) -> Hashes:
    """The column of a word, and those of its character n-grams, edges marked.

    >>> len(_pieces("desk"))  # the word; ␣de des esk sk␣, ␣des desk esk␣, ␣desk desk␣
    10
    """
    padded = f" {word} "
    grams = [padded[i : i + n] for n in GRAMS for i in range(len(padded) - n + 1)]
    columns = [crc32(word.encode()) % HALF, *(HALF + crc32(gram.encode()) % HALF for gram in grams)]
    return np.array(columns, np.uint32)


def _end_to_end(rows: list[Hashes]) -> tuple[Ints, Hashes]:
    """The columns of all texts, and whose they are."""
    text = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return text, np.concatenate([np.zeros(0, np.uint32), *rows])


def _counted(
    offsets: Ints, texts: pa.Array, width: int, columns: Callable[[list[str]], tuple[Ints, Hashes]]
) -> csr_matrix:
    """(n, width): how often texts offsets[i], …, offsets[i + 1] − 1 of each item i have each column.

    Block by block, so that memory stays bounded; several threads share many blocks.
    """

    def block(first: int, last: int) -> tuple[Ints, NDArray[np.int32], NDArray[np.float32]]:
        text, column = columns(texts[offsets[first] : offsets[last]].to_pylist())
        item = np.repeat(np.arange(last - first, dtype=np.uint32), np.diff(offsets[first : last + 1]))
        cells = np.sort(item[text] * np.uint32(width) + column)  # below 2³²: see BLOCK
        fresh = np.flatnonzero(np.diff(cells, prepend=~cells[:1]))  # where the next cell begins
        times = np.diff(fresh, append=len(cells)).astype(np.float32)
        sizes = np.bincount(cells[fresh] // np.uint32(width), minlength=last - first)
        return sizes, (cells[fresh] % np.uint32(width)).astype(np.int32), times

    bytes_before = offsets_of(pc.binary_length(texts).to_numpy(zero_copy_only=False))[offsets[1:]]
    cost = bytes_before + ITEM * np.arange(1, len(offsets))
    bounds = [*np.flatnonzero(np.diff(cost // BLOCK, prepend=-1)).tolist(), len(cost)]
    if len(texts) > MANY:
        with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:
            found = list(pool.map(block, bounds[:-1], bounds[1:]))
    else:
        found = list(map(block, bounds[:-1], bounds[1:]))
    found.append((np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)))
    sizes, indices, data = (np.concatenate(part) for part in zip(*found, strict=True))
    return csr_matrix((data, indices, offsets_of(sizes)), (len(cost), width))


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
