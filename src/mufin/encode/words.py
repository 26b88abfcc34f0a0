"""Texts as sparse vectors of words and character n-grams: what a subword encoder is blind to."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from mufin.data.items import Items
from mufin.ragged import Ints, Ragged, ranges
from mufin.rows import normalised

HALF = 1 << 17  # columns for words and pairs of words; as many again for character n-grams
WIDTH = 2 * HALF
TITLES = 1 << 20  # columns for words of titles: a collision would put words into a title
WORD = re.compile(r"\w+")
LONGEST_TEXT = 20_000  # characters
LONGEST_WORD = 64


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
    texts = [next(iter(texts or ()), "") for texts in items.texts.to_pylist()]
    rows = [sorted({crc32(word.encode()) % TITLES for word in _words(text)}) for text in texts]
    flat = np.array([column for row in rows for column in row], np.int64)
    starts = np.cumsum([0, *(len(row) for row in rows)])
    return csr_matrix((np.ones(len(flat), np.float32), flat, starts), (len(items), TITLES))


def count(items: Items) -> csr_matrix:
    """(n, 2¹⁸): how often each item's texts have what is hashed to each column."""
    offsets, flat = items.flat_texts()
    words = [_words(text) for text in flat.to_pylist()]
    lengths = np.array([len(row) for row in words], np.int64)
    pairs = [crc32(f"{a} {b}".encode()) % HALF for row in words for a, b in pairwise(row)]
    known = {word: number for number, word in enumerate(dict.fromkeys(word for row in words for word in row))}
    pieces = Ragged.of([np.zeros(0, np.int64), *(_pieces(word) for word in known)])  # the first is no word's
    which = np.fromiter((known[word] + 1 for row in words for word in row), np.int64, int(lengths.sum()))
    per_word = pieces.lengths[which]
    columns = pieces.flat[ranges(pieces.offsets[which], per_word)]
    item_of_text = np.repeat(np.arange(len(items)), np.diff(offsets))
    item_of_word = np.repeat(item_of_text, lengths)
    item_of_pair = np.repeat(item_of_text, np.maximum(lengths - 1, 0))
    rows = np.concatenate([np.repeat(item_of_word, per_word), item_of_pair])
    columns = np.concatenate([columns, np.array(pairs, np.int64)])
    cells, times = np.unique(rows * WIDTH + columns, return_counts=True)
    starts = np.searchsorted(cells, WIDTH * np.arange(len(items) + 1))
    return csr_matrix((times.astype(np.float32), cells % WIDTH, starts), (len(items), WIDTH))


def _words(text: str) -> list[str]:
    return [word[:LONGEST_WORD] for word in WORD.findall(text[:LONGEST_TEXT].lower())]


@lru_cache(maxsize=1 << 12)
def _pieces(word: str) -> Ints:
    """The column of a word, and those of its character n-grams, edges marked.

    >>> len(_pieces("desk"))  # the word; ␣de des esk sk␣, ␣des desk esk␣, ␣desk desk␣
    10
    """
    padded = f" {word} "
    grams = [padded[i : i + n] for n in (3, 4, 5) for i in range(len(padded) - n + 1)]
    return np.array(
        [crc32(word.encode()) % HALF, *(HALF + crc32(g.encode()) % HALF for g in grams)], np.int64
    )
