"""Catalogue: items, labels, splits, filter pairs, sets and questions, from files or from code."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_matrix

from mufin.data import html
from mufin.data.formats import files
from mufin.data.formats.files import Part
from mufin.data.formats.schema import STRING, STRINGS
from mufin.data.item import Item
from mufin.data.items import Items, Modality, check_ids
from mufin.data.split import (
    Questions,
    Split,
    excluded_pairs,
    leave_one_out,
    read_blanks,
    read_questions,
    read_sets,
    read_split,
)
from mufin.data.write import Format, write_folder
from mufin.errors import CatalogueError, InputTypeError, UsageError
from mufin.progress import count

if TYPE_CHECKING:
    from mufin.data.convert import Frame
    from mufin.data.importers.amazon.curate import Curation
    from mufin.data.importers.imported import Imported
    from mufin.data.importers.polyvore import Variant

__all__ = ["Catalogue", "Questions", "Split", "read_items"]

Relevance = Mapping[str, Sequence[str]] | Iterable[tuple[str, Sequence[str]]]


class Catalogue:
    """Items, labels and splits; `labels is items` if there are no separate labels.

    >>> shop = Catalogue.build([Item("a", ["desk"]), Item("b", ["lamp"])], train={"a": ["b"]})
    >>> shop.labels is shop.items, shop.split("train").relevance.toarray().tolist()
    (True, [[False, True]])
    """

    def __init__(self, items: Items, labels: Items | None = None, parts: Iterable[Part] = ()) -> None:
        self.items = items
        self.labels = items if labels is None else labels
        self.labels_are_items = self.labels is items  # or some of them; an item is then never its own label
        self.parts = {part.name: part for part in parts}
        self._splits: dict[str, Split] = {}
        self.imported: Imported | None = None  # the result of the import that made it

    @classmethod
    def read(cls, folder: str | Path) -> Catalogue:
        """Read a catalogue folder; splits are read on demand."""
        found = files.find(Path(folder))
        if "items" not in found:
            raise CatalogueError(files.no_items(Path(folder), found), folder)
        items = read_items(found.pop("items"))
        labels = read_items(found.pop("labels")) if "labels" in found else None
        parts = (files.part(path) for path in found.values())
        return cls(items, labels, [part for part in parts if part is not None])

    @classmethod
    def build(
        cls,
        items: Iterable[Item],
        labels: Iterable[Item] | None = None,
        *,
        filter: Iterable[tuple[str, str]] = (),
        sets: Mapping[str, Sequence[Sequence[str]]] | None = None,
        **splits: Relevance,
    ) -> Catalogue:
        """Build a catalogue from items; each further keyword is a split, item id → label ids."""
        parts = [_split_part(name, pairs) for name, pairs in splits.items()]
        for name, groups in (sets or {}).items():
            parts.append(Part(name, "sets", pa.table({"items": pa.array(list(groups), STRINGS)})))
        if pairs := list(filter):
            columns = {"id": [i for i, _ in pairs], "label": [label for _, label in pairs]}
            parts.append(Part("filter", "filter", pa.table(columns)))
        return cls(
            _with_unique_ids(items, "items"),
            None if labels is None else _with_unique_ids(labels, "labels"),
            parts,
        )

    @classmethod
    def demo(cls) -> Catalogue:
        """Return the built-in catalogue: icons and clip art, and the search terms that find them."""
        from mufin import demo

        return cls.read(demo.folder())

    @classmethod
    def from_amazon(cls, *sources: str | Path, curate: Curation | None = None) -> Catalogue:
        """Import Amazon product metadata of 2014, 2018 or 2023; `mufin import` streams instead."""
        from mufin.data.importers.amazon.importer import import_amazon

        with TemporaryDirectory(prefix="mufin-import-") as temporary:
            folder = Path(temporary) / "catalogue"
            imported = import_amazon([Path(source) for source in sources], folder, curate)
            catalogue = cls.read(folder)
            catalogue.parts = {name: Part(name, p.kind, p.table()) for name, p in catalogue.parts.items()}
        catalogue.imported = imported
        return catalogue

    @classmethod
    def from_xc(cls, folder: str | Path) -> Catalogue:
        """Import a data set of the Extreme Classification repository."""
        from mufin.data.importers.xc import read_xc

        return read_xc(cls, Path(folder))

    @classmethod
    def from_polyvore(
        cls, folder: str | Path, variant: Variant = "disjoint", descriptions: bool = False
    ) -> Catalogue:
        """Import Polyvore Outfits: train on `from_sets("train_outfits", "one")`, answer `fitb_test`."""
        from mufin.data.importers.polyvore import read_polyvore

        return read_polyvore(cls, Path(folder), variant, descriptions)

    @classmethod
    def from_table(cls, *sources: str | Path | Frame, **columns: Any) -> Catalogue:
        """Import CSV, TSV, Parquet or JSON lines, or a data frame (pandas, polars, Arrow).

        The keywords are the fields of `records.Columns`. In a data frame, None, NaN and NaT are missing.
        """
        from mufin.data.importers.records import Columns
        from mufin.data.importers.table import read_dataset, read_tables

        paths = [Path(source) for source in sources if isinstance(source, str | Path)]
        if len(paths) == len(sources):
            return read_tables(cls, paths, Columns(**columns))
        if len(sources) > 1:
            example = 'Catalogue.from_dataset({"train": frame, "test": other}, …)'
            raise InputTypeError(
                f"{len(sources)} tables, not all of them files; name their splits: {example}"
            )
        return read_dataset(cls, sources[0], Columns(**columns), "table")

    @classmethod
    def from_dataset(cls, source: object, **columns: Any) -> Catalogue:
        """Import a Hugging Face dataset, data frames by split, or a saved folder; see `from_table`."""
        from mufin.data.importers.records import Columns
        from mufin.data.importers.table import read_dataset

        return read_dataset(cls, source, Columns(**columns))

    def write(self, folder: str | Path, format: Format = "parquet") -> None:
        """Write everything to a new folder, which appears only when it is complete.

        Image files that cannot be decoded are skipped with a warning.
        """
        unwritable = [name for name in self._splits if name not in self.parts]
        if unwritable:
            raise UsageError(
                f"split {unwritable[0]!r} was made from sets; write the original catalogue instead"
            )
        labels = None if self.labels is self.items else self.labels
        skipped = write_folder(Path(folder), format, self.items, labels, list(self.parts.values()))
        if self.imported is not None:
            self.imported.add_skipped_images(skipped)
        elif skipped:
            message = f"{len(skipped):,} image files skipped, first: {skipped[0]}"
            warnings.warn(message, stacklevel=2)

    def __repr__(self) -> str:
        splits = ", ".join(self.splits) or "none"
        sizes = f"{count(len(self.items), 'item')}, {count(len(self.labels), 'label')}"
        return f"Catalogue({sizes}, splits: {splits})"

    def _repr_html_(self) -> str:
        first = self.items[: html.ROWS // 2]
        rows = [[html.text(item.id), html.item(item.texts, item.images)] for item in first]
        return html.table(["id", "item"], rows, len(self.items), repr(self))

    @property
    def splits(self) -> list[str]:
        """The names of the splits."""
        return self._names("split") + [name for name in self._splits if name not in self.parts]

    @property
    def sets(self) -> list[str]:
        """The names of the tables of sets."""
        return self._names("sets")

    def split(self, name: str) -> Split:
        """Return a split by name."""
        if name not in self._splits:
            self._splits[name] = read_split(
                self._part(name, "split", self.splits), self.items, self.labels, self._excluded
            )
        return self._splits[name]

    @cached_property
    def filter(self) -> csr_matrix:
        """The filter pairs, (items, L) bool: never predicted, never counted in metrics."""
        no_own_label = np.full(len(self.items), -1)
        return excluded_pairs(self.items, self.labels, no_own_label, self.parts.get("filter"))

    def from_sets(self, name: str, points: Literal["each", "one"] = "each", seed: int = 0) -> Catalogue:
        """Make a catalogue of leave-one-out points: a point is a set without one item, its label that item.

        `each` leaves out every item in turn. `one` makes one point per set, as in the paper: it leaves out
        the item in the column `blank`, or a random one. Labels are the items that occur in these sets.
        """
        part = self._part(name, "sets", self.sets)
        groups = read_sets(part, self.items)
        if not groups:
            raise self.parts[name].error("no set of two or more items; there is nothing to leave out")
        label_items = np.unique(np.concatenate(groups))
        own_label = np.full(len(self.items), -1)
        own_label[label_items] = np.arange(len(label_items))
        questions = [part for part in self.parts.values() if part.kind == "questions"]
        catalogue = Catalogue(self.items, self.items.take(label_items), questions)
        catalogue.labels_are_items = True
        left_out = groups
        if points == "one":
            left_out = [np.array([blank]) for blank in read_blanks(part, self.items, seed)]
        catalogue._splits["train"] = leave_one_out(groups, left_out, own_label, len(label_items))
        return catalogue

    def questions(self, source: str | Path) -> Questions:
        """Read fill-in-the-blank questions, by the name of a table of this catalogue or by path."""
        if str(source) in self.parts:
            return read_questions(self._part(str(source), "questions", self._names("questions")), self.items)
        path = Path(source)
        if not path.is_file():
            there = ", ".join(self._names("questions")) or "none"
            raise CatalogueError(f"no such file or table of questions; this catalogue has: {there}", path)
        if path.suffix not in files.SUFFIXES:
            raise CatalogueError("unknown format; expected .parquet or .jsonl", path)
        return read_questions(Part(path.stem, "questions", path), self.items)

    def only(self, modality: Modality) -> Catalogue:
        """Keep one modality; under `image`, separate labels without images keep their texts."""
        items = self.items.only(modality)
        labels = self.labels
        if labels is self.items:
            labels = items
        elif self.labels_are_items:
            labels = labels.only(modality)
        else:
            labels = labels.only(modality, lacking="keep")
        catalogue = Catalogue(items, labels, self.parts.values())
        catalogue.labels_are_items = self.labels_are_items
        catalogue._splits = dict(self._splits)
        return catalogue

    @cached_property
    def _excluded(self) -> csr_matrix:
        """The labels never predicted for an item, (items, L) bool: itself and its filter pairs."""
        n = len(self.items)
        own_label = np.arange(n) if self.labels is self.items else np.full(n, -1)
        return excluded_pairs(self.items, self.labels, own_label, self.parts.get("filter"))

    def _names(self, kind: str) -> list[str]:
        return [name for name, part in self.parts.items() if part.kind == kind]

    def _part(self, name: str, kind: str, names: list[str]) -> Part:
        part = self.parts.get(name)
        if part is None or part.kind != kind:
            sets = f"; to train on sets, use --sets {self.sets[0]}" if kind == "split" and self.sets else ""
            raise CatalogueError(
                f"no {kind} {name!r}; this catalogue has: {', '.join(names) or 'none'}{sets}"
            )
        return part


def read_items(path: Path) -> Items:
    """Read the items or labels of a file."""
    items = Items.from_file(files.read(path, "items"), path)
    check_ids(items.ids, Part(path.stem, "items", path))
    return items


def _with_unique_ids(items: Iterable[Item], name: str) -> Items:
    made = items if isinstance(items, Items) else Items.of(items)
    check_ids(made.ids, Part(name, "items", made.table))
    return made


def _split_part(name: str, pairs: Relevance) -> Part:
    rows = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
    ids = pa.array([id for id, _ in rows], STRING)
    labels = pa.array([list(labels) for _, labels in rows], STRINGS)
    return Part(name, "split", pa.table({"id": ids, "labels": labels}))
