"""Convert texts to sparse vectors of hashed words and character n-grams."""

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

HALF_WIDTH = 1 << 17  # columns for words and word pairs; as many again for character n-grams
WIDTH = 2 * HALF_WIDTH
TITLE_WIDTH = 1 << 20  # columns for title words; wide, since a collision adds a false word to a title
BLOCK_BYTES = 1 << 20  # text counted at a time; keeps item × width below 2³²
MIN_ITEM_BYTES = 512  # counted for each item in addition to its text: at most 2,049 items per block
FEW_TEXTS = 256  # below this many texts, a loop over words is faster than array code
MIN_THREADED_TEXTS = 50_000  # above this many texts, several threads are used
MAX_THREADS = 8  # each needs about 100 MB


def inverse_frequency(items: Items) -> NDArray[np.float32]:
    """Return idf (2¹⁸,) = log((1 + n) / (1 + df)), where df of the n items have the column."""
    seen = np.bincount(count(items).indices, minlength=WIDTH)
    return np.log((1 + len(items)) / (1 + seen)).astype(np.float32)


def tfidf(items: Items, idf: NDArray[np.float32]) -> csr_matrix:
    """Return unit rows (n, 2¹⁸) v = N([N(t ⊙ idf) of words, N(t ⊙ idf) of characters]), t = 1 + log(count).

    An item without words has a zero row.
    """
    found = count(items)
    found.data = ((1 + np.log(found.data)) * idf[found.indices]).astype(np.float32)
    halves = found.indices >= HALF_WIDTH
    rows = np.repeat(np.arange(len(items)), np.diff(found.indptr))
    place = 2 * rows + halves
    norms = np.sqrt(np.bincount(place, found.data**2, 2 * len(items)))
    found.data /= np.maximum(norms, 1e-12).astype(np.float32)[place]
    return normalised(found)


def title_words(items: Items) -> csr_matrix:
    """Return (n, 2²⁰): 1 in the columns of the words in each item's first text."""
    found = _count(*_titles(items), TITLE_WIDTH, _title_columns)
    found.data[:] = 1
    return found


def _titles(items: Items) -> tuple[Ints, pa.Array]:
    """Return first texts as offsets (n + 1,) and strings."""
    if len(items) < FEW_TEXTS:
        texts = [next(iter(some or ()), "") for some in items.texts.to_pylist()]
        return np.arange(len(items) + 1), pa.array(texts, pa.string())
    offsets, flat = flatten(items.texts)
    has = np.diff(offsets) > 0
    return offsets_of(has), flat.take(pa.array(offsets[:-1][has])).combine_chunks()


def count(items: Items) -> csr_matrix:
    """Count words, word pairs and character n-grams in each item's texts: (n, 2¹⁸)."""
    return _count(*items.flat_texts(), WIDTH, _columns)


def _title_columns(texts: list[str]) -> tuple[Ints, Hashes]:
    """Return the text and column of each word."""
    if len(texts) < FEW_TEXTS:
        rows = [[crc32(word.encode()) % TITLE_WIDTH for word in words_of(text)] for text in texts]
        return _concatenate([np.array(row, np.uint32) for row in rows])
    words = Words.of(texts)
    return words.text, words.hashes() % TITLE_WIDTH


def _columns(texts: list[str]) -> tuple[Ints, Hashes]:
    """Return the text and column of each word, word pair and n-gram; n-grams in the second half."""
    if len(texts) < FEW_TEXTS:
        return _concatenate([_text_columns(words_of(text)) for text in texts])
    words = Words.of(texts)
    (of_pair, pairs), (of_gram, grams) = words.pairs(), words.grams()
    columns = [words.hashes() % HALF_WIDTH, pairs % HALF_WIDTH, grams % HALF_WIDTH + HALF_WIDTH]
    return np.concatenate([words.text, of_pair, of_gram]), np.concatenate(columns)


def _text_columns(words: list[str]) -> Hashes:
    pairs = [crc32(f"{a} {b}".encode()) % HALF_WIDTH for a, b in pairwise(words)]
    return np.concatenate([np.array(pairs, np.uint32), *map(_word_columns, words)])


@lru_cache(maxsize=1 << 12)
def _word_columns(word: str) -> Hashes:
    """Return the columns of a word and of its character n-grams, with a space at each edge.

    >>> len(_word_columns("desk"))  # the word; ␣de des esk sk␣, ␣des desk esk␣, ␣desk desk␣
    10
    """
    padded = f" {word} "
    grams = [padded[i : i + n] for n in GRAMS for i in range(len(padded) - n + 1)]
    gram_columns = [HALF_WIDTH + crc32(gram.encode()) % HALF_WIDTH for gram in grams]
    return np.array([crc32(word.encode()) % HALF_WIDTH, *gram_columns], np.uint32)


def _concatenate(rows: list[Hashes]) -> tuple[Ints, Hashes]:
    """Concatenate the columns of all texts; also return the text of each column."""
    text = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return text, np.concatenate([np.zeros(0, np.uint32), *rows])


def _count(
    offsets: Ints, texts: pa.Array, width: int, columns: Callable[[list[str]], tuple[Ints, Hashes]]
) -> csr_matrix:
    """Count columns per item, (n, width); item i has texts offsets[i], …, offsets[i + 1] − 1.

    Works in blocks to bound memory; threads share the blocks of large inputs.
    """

    def block(first: int, last: int) -> tuple[Ints, NDArray[np.int32], NDArray[np.float32]]:
        text, column = columns(texts[offsets[first] : offsets[last]].to_pylist())
        item = np.repeat(np.arange(last - first, dtype=np.uint32), np.diff(offsets[first : last + 1]))
        cells = np.sort(item[text] * np.uint32(width) + column)  # below 2³²: see BLOCK_BYTES
        fresh = np.flatnonzero(np.diff(cells, prepend=~cells[:1]))  # start of each distinct cell
        times = np.diff(fresh, append=len(cells)).astype(np.float32)
        sizes = np.bincount(cells[fresh] // np.uint32(width), minlength=last - first)
        return sizes, (cells[fresh] % np.uint32(width)).astype(np.int32), times

    bytes_before = offsets_of(pc.binary_length(texts).to_numpy(zero_copy_only=False))[offsets[1:]]
    cost = bytes_before + MIN_ITEM_BYTES * np.arange(1, len(offsets))
    bounds = [*np.flatnonzero(np.diff(cost // BLOCK_BYTES, prepend=-1)).tolist(), len(cost)]
    if len(texts) > MIN_THREADED_TEXTS:
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            found = list(pool.map(block, bounds[:-1], bounds[1:]))
    else:
        found = list(map(block, bounds[:-1], bounds[1:]))
    found.append((np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32)))
    sizes, indices, data = (np.concatenate(part) for part in zip(*found, strict=True))
    return csr_matrix((data, indices, offsets_of(sizes)), (len(cost), width))


Hashes = NDArray[np.uint32]

WORD = re.compile(r"\w+")
MAX_CHARACTERS = 20_000  # of a text
MAX_WORD = 64  # characters of a word
GRAMS = (3, 4, 5)  # characters of an n-gram
SEPARATOR = 0xD800  # half a surrogate pair, which occurs in no text and no word
CRC_MASK = np.uint32(0xFFFFFFFF)  # initial state of CRC-32, also applied at the end
UTF8_LIMITS = np.array([0x7F, 0x7FF, 0xFFFF], np.uint32)  # largest character of 1, 2, 3 bytes
UTF8_LEADS = np.array([0x00, 0xC0, 0xE0, 0xF0], np.uint32)  # first byte's prefix when 0 to 3 bytes follow


@dataclass(frozen=True)
class Words:
    """The W lower-case words of some texts; word i is `codes[starts[i] : starts[i] + lengths[i]]`."""

    codes: NDArray[np.uint32]  # Unicode code points of all texts
    starts: Ints  # (W,)
    lengths: Ints  # (W,), at most 64
    text: Ints  # (W,), ascending: the text of each word

    @classmethod
    def of(cls, texts: Sequence[str]) -> Words:
        """Find all runs of letters, digits and underscores, as `re` does.

        >>> words = Words.of(["Oak desk", "lamp"])
        >>> words.text.tolist(), words.lengths.tolist()
        ([0, 0, 1], [3, 4, 4])
        """
        joined = chr(SEPARATOR).join(text[:MAX_CHARACTERS] for text in texts).lower()
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
        edges = np.flatnonzero(np.diff(_word_characters()[codes], prepend=False, append=False))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        text = np.searchsorted(np.flatnonzero(codes == SEPARATOR), starts)
        return cls(codes, starts, np.minimum(lengths, MAX_WORD), text)

    def hashes(self) -> Hashes:
        """Return the CRC-32 of each word in UTF-8, (W,)."""
        state = np.full(len(self.starts), CRC_MASK, np.uint32)
        return self._add_words(state, self.starts, self.lengths) ^ CRC_MASK

    def pairs(self) -> tuple[Ints, Hashes]:
        """Return the text and the CRC-32 of each two adjacent words, joined by a space."""
        first = np.flatnonzero(self.text[1:] == self.text[:-1])
        state = np.full(len(first), CRC_MASK, np.uint32)
        state = self._add_words(state, self.starts[first], self.lengths[first])
        state = _add_character(state, np.full(len(first), ord(" "), np.uint32))
        state = self._add_words(state, self.starts[first + 1], self.lengths[first + 1])
        return self.text[first], state ^ CRC_MASK

    def grams(self) -> tuple[Ints, Hashes]:
        """Return the text and the CRC-32 of each 3- to 5-gram of a word with a space on each side."""
        offsets = offsets_of(self.lengths + 2)
        padded = np.full(offsets[-1], ord(" "), np.uint32)
        padded[ranges(offsets[:-1] + 1, self.lengths)] = self.codes[ranges(self.starts, self.lengths)]
        left = (np.repeat(offsets[1:], self.lengths + 2) - np.arange(len(padded))).astype(np.uint8)
        text = np.repeat(self.text.astype(np.int32), self.lengths + 2)
        state, found = np.full(len(padded), CRC_MASK, np.uint32), []
        for n in range(max(GRAMS)):  # n-grams across words are computed too: removing them later is faster
            state = _add_character(state[: len(padded) - n], padded[n:])
            if n + 1 in GRAMS:
                inside = left[: len(state)] > n
                found.append((text[: len(state)][inside], state[inside] ^ CRC_MASK))
        owners, hashes = zip(*found, strict=True)
        return np.concatenate(owners), np.concatenate(hashes)

    def _add_words(self, state: Hashes, starts: Ints, lengths: Ints) -> Hashes:
        """Update CRC states with one word each, one letter at a time for all words."""
        order = np.argsort(-lengths, kind="stable")
        state, starts, lengths = state[order], starts[order], lengths[order]
        for n in range(int(lengths.max(initial=0))):
            longer = int(np.searchsorted(-lengths, -n, side="left"))
            state[:longer] = _add_character(state[:longer], self.codes[starts[:longer] + n])
        spelt = np.empty_like(state)
        spelt[order] = state
        return spelt


def words_of(text: str) -> list[str]:
    """Return the words of one text, as `Words` finds them.

    >>> words_of("Oak desk, large")
    ['oak', 'desk', 'large']
    """
    return [word[:MAX_WORD] for word in WORD.findall(text[:MAX_CHARACTERS].lower())]


def _add_character(state: Hashes, codes: Hashes) -> Hashes:
    """Update CRC states with one UTF-8 character each."""
    if not len(codes) or codes.max() < 0x80:
        return _add_byte(state, codes)
    more = np.searchsorted(UTF8_LIMITS, codes).astype(np.uint32)  # bytes after the first
    state = _add_byte(state, UTF8_LEADS[more] | codes >> 6 * more)
    for left in (3, 2, 1):
        some = np.flatnonzero(more >= left)
        byte = np.uint32(0x80) | codes[some] >> np.uint32(6 * left - 6) & np.uint32(0x3F)
        state[some] = _add_byte(state[some], byte)
    return state


def _add_byte(state: Hashes, byte: Hashes) -> Hashes:
    """Update CRC states with one byte each."""
    after: Hashes = _crc_table()[(state ^ byte) & 0xFF] ^ state >> np.uint32(8)
    return after


@cache
def _crc_table() -> Hashes:
    """Return the CRC-32 lookup table."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(0xEDB88320), table >> 1)
    return table


@cache
def _word_characters() -> NDArray[np.bool_]:
    """Return which code points are letters, digits or underscores."""
    every = np.arange(0x110000, dtype=np.uint32).tobytes().decode("utf-32-le", "surrogatepass")
    found = np.zeros(len(every), bool)
    for run in WORD.finditer(every):
        found[run.start() : run.end()] = True
    return found
