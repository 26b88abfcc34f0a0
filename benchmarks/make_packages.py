"""Build three text catalogues from Debian package descriptions, on which no setting was chosen.

    apt-cache dumpavail > packages.txt
    python benchmarks/make_packages.py packages.txt OUT

OUT/debian-depends: which packages a package depends on or recommends; labels have a name and a description.
OUT/debian-tags: the facets of a package. OUT/debian-all: both kinds of labels; the section is a third text.
About 10,000 training and 2,000 test packages, in debian-all 40,000 and 4,000; packages of the same source are
in the same split. Labels that do not occur in training are dropped.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mufin import Catalogue, Item

SMALL, LARGE = (10_000, 2_000), (40_000, 4_000)  # packages in train and test
Package = dict[str, str]  # field → value


def read_packages(path: Path) -> Iterator[Package]:
    """Parse paragraphs of `Field: value`; indented lines continue a value."""
    found: Package = {}
    field = ""
    for line in path.read_text("utf-8", "replace").splitlines():
        if not line:
            yield found
            found = {}
        elif line[0] in " \t":
            found[field] += " " + line.strip()
        else:
            field, _, value = line.partition(":")
            found[field] = value.strip()


def dependencies(package: Package, known: dict[str, Package]) -> list[str]:
    listed = [name for field in ("Depends", "Recommends") for name in package.get(field, "").split(",")]
    names = (re.match(r"\s*([a-z0-9.+-]+)", name) for name in listed)
    return sorted({name[1] for name in names if name and name[1] in known})


def tags(package: Package) -> list[str]:
    listed = package.get("Tag", "").replace(" ", "").split(",")
    return sorted({tag for tag in listed if "::" in tag and not re.search("[{}]", tag)})


def catalogue(
    texts: dict[str, list[str]],
    known: dict[str, Package],
    labels_of: dict[str, list[str]],
    labels: dict[str, Item],
    size: tuple[int, int] = SMALL,
) -> Catalogue:
    """Assign whole sources in random order, to the test split until it is full, then to train."""
    sources = defaultdict(list)
    for name in labels_of:
        sources[known[name].get("Source", name).split()[0]].append(name)
    groups = list(sources.values())
    random.shuffle(groups)
    train: list[str] = []
    test: list[str] = []
    for group in groups:
        (test if len(test) < size[1] else train).extend(group)
        if len(train) >= size[0]:
            break
    seen = {label for name in train for label in labels_of[name]}
    items = [Item(name, texts[name]) for name in train + test]
    known_labels = [labels[label] for label in sorted(seen)]
    return Catalogue.build(
        items, known_labels, train=_pairs(train, labels_of, seen), test=_pairs(test, labels_of, seen)
    )


def _pairs(names: list[str], labels_of: dict[str, list[str]], seen: set[str]) -> dict[str, list[str]]:
    kept = {name: [label for label in labels_of[name] if label in seen] for name in names}
    return {name: labels for name, labels in kept.items() if labels}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    random.seed(5)
    known = {p["Package"]: p for p in read_packages(arguments.packages) if p.get("Description")}

    tagged = {name: found for name, p in known.items() if len(found := tags(p)) > 2}
    facets = {tag for found in tagged.values() for tag in found}
    named = {tag: Item(tag, [re.sub("::|-", " ", tag)]) for tag in facets}
    texts = {name: [name, p["Description"]] for name, p in known.items()}
    catalogue(texts, known, tagged, named).write(arguments.out / "debian-tags")

    dependent = {name: found for name, p in known.items() if (found := dependencies(p, known))}
    described = {name: Item(name, texts[name]) for name in known}
    catalogue(texts, known, dependent, described).write(arguments.out / "debian-depends")

    longer = {name: [*texts[name], p.get("Section", "")] for name, p in known.items()}
    either = {name: dependent.get(name, []) + tagged.get(name, []) for name in known}
    either = {name: found for name, found in either.items() if found}
    catalogue(longer, known, either, described | named, LARGE).write(arguments.out / "debian-all")


if __name__ == "__main__":
    main()
