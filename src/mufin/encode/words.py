"""Texts as sparse vectors of words and character n-grams: what a subword encoder is blind to."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from zlib import crc32

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from mufin.data.items import Items
from mufin.ragged import Ints, Ragged, ranges

HALF = 1 << 17  # columns for words and pairs of words; as many again for character n-grams
WIDTH = 2 * HALF
TITLES = 1 << 20  # columns for words of titles: who shares one by chance would say what it does not say
WORD = re.compile(r"\w+")
LONGEST_TEXT = 20_000  # characters
LONGEST_WORD = 64


class Words(nn.Module):
    """TF-IDF over hashed words, pairs of neighbouring words, and 3- to 5-grams of their characters.

    v = N([N(t ⊙ idf) of words, N(t ⊙ idf) of characters]) with t = 1 + log(count) and
    idf = log((1 + n) / (1 + df)).
    """

    idf: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("idf", torch.ones(WIDTH))

    def learn(self, items: Items) -> None:
        """How telling each column is, from these items."""
        seen = np.bincount(count(items).indices, minlength=WIDTH)
        self.idf.copy_(torch.from_numpy(np.log((1 + len(items)) / (1 + seen))))

    def vectors(self, items: Items) -> csr_matrix:
        """(n, 2¹⁸) unit rows; a zero row for an item without words."""
        found = count(items)
        idf = self.idf.cpu().numpy()
        found.data = ((1 + np.log(found.data)) * idf[found.indices]).astype(np.float32)
        halves = found.indices >= HALF
        rows = np.repeat(np.arange(len(items)), np.diff(found.indptr))
        place = 2 * rows + halves
        norms = np.sqrt(np.bincount(place, found.data**2, 2 * len(items)))
        found.data /= np.maximum(norms, 1e-12).astype(np.float32)[place]
        return normalised(found)


def titles(items: Items) -> csr_matrix:
    """(n, 2²⁰): one where the first text of an item has a word that is hashed there."""
    texts = [next(iter(texts or ()), "") for texts in items.texts.to_pylist()]
    rows = [sorted({crc32(word.encode()) % TITLES for word in _words(text)}) for text in texts]
    flat = np.array([column for row in rows for column in row], np.int64)
    starts = np.cumsum([0, *(len(row) for row in rows)])
    return csr_matrix((np.ones(len(flat), np.float32), flat, starts), (len(items), TITLES))


def normalised(rows: csr_matrix) -> csr_matrix:
    """Rows of length one, or zero."""
    place = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    norms = np.sqrt(np.bincount(place, rows.data.astype(np.float64) ** 2, rows.shape[0]))
    rows.data = (rows.data / np.maximum(norms, 1e-12)[place]).astype(np.float32)
    return rows


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


def united(vectors: csr_matrix, offsets: Ints, members: Ints) -> csr_matrix:
    """The vector of each group of items: `members[offsets[i]:offsets[i + 1]]` summed, of length one."""
    if len(members) == len(offsets) - 1 and (np.diff(offsets) == 1).all():
        every = np.array_equal(members, np.arange(vectors.shape[0]))
        return vectors if every else vectors[members]
    groups = csr_matrix(
        (np.ones(len(members), np.float32), members, offsets), (len(offsets) - 1, vectors.shape[0])
    )
    return normalised(csr_matrix(groups @ vectors))


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
