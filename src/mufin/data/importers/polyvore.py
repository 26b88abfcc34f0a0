"""Read Polyvore Outfits (Vasileva et al. 2018): outfits as sets, and fill-in-the-blank questions.

    polyvore_item_metadata.json                 item id → title, url_name, description, semantic_category, …
    images/<item id>.jpg
    {disjoint,nondisjoint}/{train,valid,test}.json      [{set_id, items: [{item_id, index}, …]}, …]
    {disjoint,nondisjoint}/fill_in_blank_{train,valid,test}.json
                                        [{question: ["set_index", …], answers: [4 of them], blank_position}]

The right answer is the item of the question's own outfit: the blank of that outfit.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from mufin.data.check_report import Problem, add_warning
from mufin.data.formats import safe_json
from mufin.data.formats.files import Part, is_file
from mufin.data.formats.schema import STRING, STRINGS
from mufin.data.importers.imported import Imported, statistics
from mufin.data.items import Items
from mufin.errors import CatalogueError

if TYPE_CHECKING:
    from mufin.data.catalogue import Catalogue

Variant = Literal["disjoint", "nondisjoint"]
SPLITS = ("train", "valid", "test")
Json = Any
Outfits = dict[str, dict[str, str]]  # set id → index within the set → item id


def read_polyvore(
    make: type[Catalogue], folder: Path, variant: Variant = "disjoint", descriptions: bool = False
) -> Catalogue:
    """Read one variant: sets `train_outfits`, … with their blanks, and questions `fitb_test`, …

    The text of an item is its short caption, as in the paper; `descriptions` adds a second text.
    """
    splits = folder / variant
    if not splits.is_dir():
        raise CatalogueError(f"no folder {variant}; expected the unpacked polyvore_outfits", folder)
    metadata = _read_json(folder / "polyvore_item_metadata.json", dict)
    outfits = {
        name: _read_outfits(splits / f"{name}.json") for name in SPLITS if (splits / f"{name}.json").is_file()
    }
    if "train" not in outfits:
        raise CatalogueError("no such file; expected the training outfits", splits / "train.json")
    problems: list[Problem] = []
    questions = {
        name: _read_questions(splits / f"fill_in_blank_{name}.json", one, problems)
        for name, one in outfits.items()
        if (splits / f"fill_in_blank_{name}.json").is_file()
    }
    parts = [_sets_part(f"{name}_outfits", one, questions.get(name, [])) for name, one in outfits.items()]
    parts += [_questions_part(f"fitb_{name}", rows) for name, rows in questions.items()]
    used = list(
        dict.fromkeys(item for one in outfits.values() for row in one.values() for item in row.values())
    )
    catalogue = make(_items(used, metadata, folder, descriptions, problems), None, parts)
    counts = _shared_items(outfits, variant, problems)
    catalogue.imported = Imported("polyvore", statistics(catalogue), counts, problems)
    catalogue.imported.statistics.test = sum(len(p.table()) for p in parts if p.name == "fitb_test")
    return catalogue


def _shared_items(outfits: dict[str, Outfits], variant: str, problems: list[Problem]) -> dict[str, int]:
    """Count the items that two splits share; in `disjoint` that is a leak, reported as a warning."""
    items = {name: {item for row in one.values() for item in row.values()} for name, one in outfits.items()}
    counts = {}
    for first, second in combinations(items, 2):
        shared = items[first] & items[second]
        counts[f"items in {first} and {second}"] = len(shared)
        if variant == "disjoint":
            message = f"item is also in {first}, but the splits should be disjoint"
            add_warning(problems, message, f"{second}.json", sorted(shared))
    return counts


def _read_json(path: Path, kind: type) -> Json:
    try:
        value = safe_json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CatalogueError("no such file; expected the unpacked polyvore_outfits", path) from None
    except OSError as error:
        raise CatalogueError(f"cannot be read: {error.strerror}", path) from None
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise CatalogueError(f"not JSON ({error}); unpack it again", path, line) from None
    if not isinstance(value, kind):
        raise CatalogueError(
            f"found a {type(value).__name__}, expected a {kind.__name__}; unpack it again", path
        )
    return value


def _read_outfits(path: Path) -> Outfits:
    found: Outfits = {}
    for number, outfit in enumerate(_read_json(path, list), start=1):
        try:
            items = {str(item["index"]): str(item["item_id"]) for item in outfit["items"]}
            found[str(outfit["set_id"])] = items
        except (TypeError, KeyError) as error:
            raise CatalogueError(f"outfit {number} has no {error}; unpack it again", path) from None
    if not found:
        raise CatalogueError("no outfits; unpack it again", path)
    return found


def _sets_part(name: str, outfits: Outfits, questions: list[dict[str, Any]]) -> Part:
    """Return the outfits; the blank of each is the answer to the question about it, if any."""
    blank = {row["set_id"]: row["choices"][row["answer"]] for row in questions}
    columns = {
        "items": pa.array([list(row.values()) for row in outfits.values()], STRINGS),
        "set_id": pa.array(list(outfits), STRING),
        "blank": pa.array([blank.get(outfit) for outfit in outfits], STRING),
    }
    return Part(name, "sets", pa.table(columns))


def _read_questions(path: Path, outfits: Outfits, problems: list[Problem]) -> list[dict[str, Any]]:
    """Read the questions with known items and exactly one right answer; report the others."""
    good: list[dict[str, Any]] = []
    bad: list[str] = []
    for number, question in enumerate(_read_json(path, list), start=1):
        try:
            good.append(_parse_question(question, outfits))
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            bad.append(f"question {number}: {error}")
    add_warning(problems, "invalid question; skipped", path.name, bad)
    return good


def _questions_part(name: str, questions: list[dict[str, Any]]) -> Part:
    columns = {"query": STRINGS, "choices": STRINGS, "answer": pa.int64()}
    table = {name: pa.array([row[name] for row in questions], kind) for name, kind in columns.items()}
    return Part(name, "questions", pa.table(table))


def _parse_question(question: Json, outfits: Outfits) -> dict[str, Any]:
    own = str(question["question"][0]).rpartition("_")[0]
    answers = [str(answer) for answer in question["answers"]]
    right = [place for place, answer in enumerate(answers) if answer.rpartition("_")[0] == own]
    if len(right) > 1:  # a wrong answer of the same outfit: the blank decides
        right = [place for place in right if answers[place] == f"{own}_{question.get('blank_position')}"]
    if len(right) != 1:
        raise ValueError(f"{len(right)} answers belong to outfit {own}, expected 1")
    return {
        "query": [_item(str(part), outfits) for part in question["question"]],
        "choices": [_item(answer, outfits) for answer in answers],
        "answer": right[0],
        "set_id": own,
    }


def _item(reference: str, outfits: Outfits) -> str:
    set_id, _, index = reference.rpartition("_")
    item = outfits.get(set_id, {}).get(index)
    if item is None:
        raise ValueError(f"unknown item {reference!r}")
    return item


def _items(
    used: list[str], metadata: Json, folder: Path, descriptions: bool, problems: list[Problem]
) -> Items:
    """Return the items: title (else the name in the URL), perhaps description; category; image."""
    unknown = [item for item in used if not isinstance(metadata.get(item), dict)]
    add_warning(problems, "item without metadata", "polyvore_item_metadata.json", unknown)
    rows = [metadata[item] if isinstance(metadata.get(item), dict) else {} for item in used]
    images = [[f"images/{item}.jpg"] if is_file(folder / "images" / f"{item}.jpg") else [] for item in used]
    lacking = [item for item, row in zip(used, images, strict=True) if not row]
    add_warning(problems, "item without image in images/", "images", lacking)
    more = ["description"] if descriptions else []
    texts = [[text for text in (_title(row), *(_text(row, name) for name in more)) if text] for row in rows]
    table = {
        "id": pa.array(used, STRING),
        "texts": pa.array(texts, STRINGS),
        "images": pa.array(images, STRINGS),
        "category": pa.array([_text(row, "semantic_category") or None for row in rows], STRING),
    }
    return Items.from_table(pa.table(table), folder)


def _title(row: dict[str, Json]) -> str:
    return _text(row, "title") or _text(row, "url_name")


def _text(row: dict[str, Json], name: str) -> str:
    value = row.get(name)
    return value.strip() if isinstance(value, str) else ""
