"""Texts as words and character n-grams."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from mufin import Item
from mufin.data.items import Items
from mufin.encode import words
from mufin.encode.rows import SparseRows
from mufin.encode.words import HALF_WIDTH, TITLE_WIDTH, WIDTH, count, inverse_frequency, tfidf

TEXTS = ["Oak desk", "oak desk, large", "walnut desk", "red wool scarf", "scarves of wool", "", "机の上"]


def items(*texts: str) -> Items:
    return Items.of([Item(id=str(i), texts=[text] if text else []) for i, text in enumerate(texts)])


def test_rows_have_length_one_or_nothing() -> None:
    rows = tfidf(items(*TEXTS), inverse_frequency(items(*TEXTS)))
    assert rows.shape == (len(TEXTS), WIDTH)
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    assert lengths == pytest.approx([1, 1, 1, 1, 1, 0, 1])


def test_similarities_are_those_of_plain_tfidf() -> None:
    rows = tfidf(items(*TEXTS), inverse_frequency(items(*TEXTS)))
    whole = np.asarray((rows @ rows.T).todense())

    settings = {"sublinear_tf": True, "smooth_idf": False, "norm": "l2"}
    by_word = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", **settings)
    by_piece = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), **settings)
    wanted = np.zeros_like(whole)
    for vectorizer in (by_word, by_piece):
        counts = vectorizer.fit_transform([text.replace(",", "") for text in TEXTS])
        seen = np.asarray((counts > 0).sum(0)).ravel()
        idf = np.log((1 + len(TEXTS)) / (1 + seen))
        plain = counts.toarray() / vectorizer.idf_ * idf
        plain /= np.maximum(np.linalg.norm(plain, axis=1, keepdims=True), 1e-12)
        wanted += plain @ plain.T / 2
    real = [0, 1, 2, 3, 4]
    assert whole[np.ix_(real, real)] == pytest.approx(wanted[np.ix_(real, real)], abs=1e-3)


def test_counts_add_up_over_the_texts_of_an_item() -> None:
    both = count(Items.of([Item(id="a", texts=["oak desk", "oak"])])).toarray()[0]
    one, other = (count(items(text)).toarray()[0] for text in ("oak desk", "oak"))
    assert (both == one + other).all()
    assert both[:HALF_WIDTH].sum() == 4  # oak, desk, oak; and the pair
    assert count(items()).shape == (0, WIDTH)


def test_long_and_odd_texts_are_no_problem() -> None:
    rows = count(items("x" * 100_000, "\x00?", "🙂 🙂", "ÄÖÜ"))
    assert rows.shape == (4, WIDTH)
    assert rows[0].nnz < 500


def test_a_group_has_the_words_of_all_its_members() -> None:
    rows = tfidf(items("oak desk", "red scarf", "lamp"), np.ones(WIDTH, np.float32))
    groups = SparseRows.of(rows).grouped(np.array([0, 2, 3]), np.array([0, 1, 2])).csr
    assert groups.shape[0] == 2
    total = np.asarray((rows[0] + rows[1]).todense()).ravel()
    assert groups[0].toarray()[0] == pytest.approx(total / np.linalg.norm(total), abs=1e-6)


def odd_text(rng: random.Random) -> str:
    """Letters of many scripts, some of which grow in lower case, or turn by what follows them."""
    some = [*"abcdefgHIJ  ,.-_'\n\x00ÄÖÜßİΣσς机の上🙂𝔘𝟘ǅﬁⅫ٣", "\u0301", "\u200d", "\U0010ffff", "ΑΣ "]
    match rng.randrange(10):
        case 0:
            return "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(rng.randrange(40)))
        case 1:
            return rng.choice(["x" * 100_000, "ab cd İ" * 5000, "", "Σ" * 70])
        case _:
            return "".join(rng.choice(some) for _ in range(rng.randrange(200)))


def plain_columns(texts: list[str]) -> Counter[int]:
    """What is counted of an item, word by word."""
    found: Counter[int] = Counter()
    for text in texts:
        words = [word[:64] for word in re.findall(r"\w+", text[:20_000].lower())]
        found.update(crc32(word.encode()) % HALF_WIDTH for word in words)
        found.update(crc32(f"{a} {b}".encode()) % HALF_WIDTH for a, b in pairwise(words))
        for word in (f" {word} " for word in words):
            grams = (word[i : i + n] for n in (3, 4, 5) for i in range(len(word) - n + 1))
            found.update(HALF_WIDTH + crc32(gram.encode()) % HALF_WIDTH for gram in grams)
    return found


@pytest.mark.parametrize("way", ["few", "many", "threads"])
def test_columns_are_those_of_a_loop(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "FEW_TEXTS", 1000 if way == "few" else 0)
    monkeypatch.setattr(words, "MIN_THREADED_TEXTS", 0 if way == "threads" else 1000)
    monkeypatch.setattr(words, "BLOCK_BYTES", 1 << 13)
    rng = random.Random(0)
    texts = [[odd_text(rng) for _ in range(rng.choice([0, 1, 1, 3]))] for _ in range(200)]
    some = Items.of([Item(str(i), each) for i, each in enumerate(texts)])
    counted, titles = count(some), words.title_words(some)
    assert counted.shape == (200, WIDTH)
    for i, each in enumerate(texts):
        wanted = plain_columns(each)
        row = counted[[i]]
        assert row.indices.tolist() == sorted(wanted)
        assert row.data.tolist() == [wanted[column] for column in sorted(wanted)]
        first = re.findall(r"\w+", "".join(each[:1])[:20_000].lower())
        hashed = {crc32(word[:64].encode()) % TITLE_WIDTH for word in first}
        assert titles[[i]].indices.tolist() == sorted(hashed)
    assert (titles.data == 1).all()
