"""Build two text catalogues from Debian package descriptions, on which no setting was chosen.

    apt-cache dumpavail > packages.txt
    python benchmarks/make_packages.py packages.txt OUT

OUT/debian-depends: which packages a package depends on or recommends; labels have a name and a description.
OUT/debian-tags: the facets of a package. About 10,000 training and 2,000 test packages; packages of the same
source are in the same split. Labels that do not occur in training are dropped.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from mufin import Catalogue, Item

TRAIN_PACKAGES, TEST_PACKAGES = 10_000, 2_000
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
    known: dict[str, Package], labels_of: dict[str, list[str]], labels: dict[str, Item]
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
        (test if len(test) < TEST_PACKAGES else train).extend(group)
        if len(train) >= TRAIN_PACKAGES:
            break
    seen = {label for name in train for label in labels_of[name]}
    items = [Item(name, [name, known[name]["Description"]]) for name in train + test]
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
    catalogue(known, tagged, named).write(arguments.out / "debian-tags")

    dependent = {name: found for name, p in known.items() if (found := dependencies(p, known))}
    described = {name: Item(name, [name, p["Description"]]) for name, p in known.items()}
    catalogue(known, dependent, described).write(arguments.out / "debian-depends")


if __name__ == "__main__":
    main()
