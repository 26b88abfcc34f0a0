"""Write the samples beside this file: a small shop of our own in every form that `mufin import` reads.

python tests/samples/make.py
"""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from scipy.sparse import csr_matrix, save_npz

HERE = Path(__file__).parent
COLOURS = {"red": (210, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 210), "black": (20, 20, 20)}
THINGS = ["desk", "lamp", "chair", "sofa", "shelf", "stool", "rug", "clock", "vase", "bed"]
PRODUCTS = [
    (f"B{i:09d}", colour, thing) for i, (colour, thing) in enumerate((c, t) for c in COLOURS for t in THINGS)
]
HOST = "https://pictures.example.com/I"


def picture(colour: str, thing: str) -> bytes:
    """A square of the colour with a bar that differs by thing."""
    pixels = np.full((12, 12, 3), 255, np.uint8)
    pixels[2:10, 2:10] = COLOURS[colour]
    pixels[1 + THINGS.index(thing), :] = 90
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bought(number: int) -> list[str]:
    """Three others of the same colour, and one product that is nowhere."""
    start = number // len(THINGS) * len(THINGS)
    return [PRODUCTS[start + (number + step) % len(THINGS)][0] for step in (1, 2, 5)] + ["B999999999"]


def amazon_2014() -> list[str]:
    rows: list[dict[str, Any]] = []
    for number, (asin, colour, thing) in enumerate(PRODUCTS):
        row: dict[str, Any] = {"asin": asin, "title": f"{colour} {thing}", "imUrl": f"{HOST}/{asin}.jpg"}
        row |= {
            "related": {"also_bought": bought(number), "also_viewed": []},
            "categories": [["Home", thing]],
        }
        rows.append(row | {"price": 9.5, "salesRank": {"Home": number}})
    rows[1]["title"] = 'the "kids\'" lamp, 5\\" wide, café'
    rows[2]["imUrl"] = "http://g-ecx.images-amazon.com/images/G/01/x-site/icons/no-img-sm._CB192198896_.gif"
    rows[3]["description"] = None
    lines = [repr(row) for row in rows]
    return [
        *lines[:5],
        "{'asin': 'B1', 'title': __import__('os').getcwd()}",
        "{'asin': 'cut sho",
        *lines[5:],
        lines[7],
    ]


def amazon_2018() -> list[str]:
    rows: list[Any] = []
    for number, (asin, colour, thing) in enumerate(PRODUCTS):
        pictures = [f"{HOST}/{asin}-{i}.jpg" for i in range(17 if number == 0 else 2)]
        row = {"category": ["Home"], "tech1": "", "description": [""], "title": f"{colour} {thing}"}
        row |= {"also_buy": bought(number), "main_cat": "Home", "price": "$9.50", "asin": asin}
        rows.append(row | {"imageURL": [f"{HOST}/{asin}._SS40_.jpg"], "imageURLHighRes": pictures})
    rows[1] |= {"imageURLHighRes": [], "also_buy": ""}
    rows[2] |= {"title": "var aPageStart = (new Date()).getTime();"}
    rows[3] |= {"title": "", "imageURL": [], "imageURLHighRes": []}
    rows[4] |= {"title": 1984}
    rows[5]["also_buy"].append(rows[5]["asin"])
    lines = [json.dumps(row) for row in rows]
    return [*lines[:10], '{"asin": "B2", "title": "no en', "[1, 2]", '{"title": "no asin"}', *lines[10:]]


def amazon_2023() -> list[str]:
    lines = []
    for number, (asin, colour, thing) in enumerate(PRODUCTS):
        main = {
            "thumb": f"{HOST}/{asin}-t.jpg",
            "large": f"{HOST}/{asin}.jpg",
            "variant": "MAIN",
            "hi_res": None,
        }
        side = main | {"variant": "PT01", "hi_res": f"{HOST}/{asin}-hi.jpg"}
        row = {
            "main_category": "Home",
            "title": f"{colour} {thing}",
            "average_rating": 4.5,
            "images": [main, side],
        }
        row |= {"features": [], "price": None, "videos": [], "store": None, "details": {"Colour": colour}}
        lines.append(
            json.dumps(row | {"parent_asin": asin, "bought_together": bought(number) if number % 4 else None})
        )
    return lines


def xc(folder: Path) -> None:
    """Points are products, labels the products bought too; every third point is a test point."""
    points = {
        "trn": [n for n in range(len(PRODUCTS)) if n % 3],
        "tst": [n for n in range(len(PRODUCTS)) if n % 3 == 0],
    }
    rows = {asin: number for number, (asin, _, _) in enumerate(PRODUCTS)}
    folder.mkdir()
    _gzipped(folder / "lbl.json.gz", [json.dumps({"uid": a, "title": f"{c} {t}"}) for a, c, t in PRODUCTS])
    for name, numbers in points.items():
        targets = [[rows[asin] for asin in bought(number) if asin in rows] for number in numbers]
        made = [
            {
                "uid": PRODUCTS[n][0],
                "title": f"{PRODUCTS[n][1]} {PRODUCTS[n][2]}",
                "content": "",
                "target_ind": t,
                "target_rel": [1.0] * len(t),
            }
            for n, t in zip(numbers, targets, strict=True)
        ]
        _gzipped(folder / f"{name}.json.gz", [json.dumps(row) for row in made])
        split = {"trn": "train", "tst": "test"}[name]
        hidden = "".join(f"{place} {number}\n" for place, number in enumerate(numbers))
        (folder / f"filter_labels_{split}.txt").write_text(hidden)


def released(folder: Path) -> None:
    """The same as the released MUFIN has it: raw text, X_Y files, img.bin and the CSR of its offsets."""
    rows = {asin: number for number, (asin, _, _) in enumerate(PRODUCTS)}
    for name in ("raw_data", "images"):
        (folder / name).mkdir(parents=True)
    places, blob = {}, b""
    for number, (asin, colour, thing) in enumerate(PRODUCTS):
        if number != 4:  # one without a picture
            places[asin] = len(blob)
            blob += asin.encode() + b"\t" + base64.b64encode(picture(colour, thing)) + b"\n"
    (folder / "images" / "img.bin").write_bytes(blob)
    numbers = {
        "train": [n for n in range(40) if n % 3],
        "test": [n for n in range(40) if n % 3 == 0],
        "label": list(range(40)),
    }
    for name, chosen in numbers.items():
        raw = [f"{PRODUCTS[n][0]}->{PRODUCTS[n][1]}_{PRODUCTS[n][2]}" for n in chosen]
        (folder / "raw_data" / f"{name}.raw.txt").write_text("\n".join(raw) + "\n")
        offsets = [places.get(PRODUCTS[n][0], -1) + 1 for n in chosen]
        matrix = csr_matrix((np.array(offsets, float), (range(len(chosen)), range(len(chosen)))))
        save_npz(folder / "images" / f"{name}.img.bin.npz", matrix)
        if name != "label":
            pairs = [" ".join(f"{rows[a]}:1.0" for a in bought(n) if a in rows) for n in chosen]
            short = {"train": "trn", "test": "tst"}[name]
            (folder / f"{short}_X_Y.txt").write_text(
                f"{len(chosen)} {len(PRODUCTS)}\n" + "\n".join(pairs) + "\n"
            )
            (folder / f"filter_labels_{name}.txt").write_text("")


def polyvore(folder: Path) -> None:
    """Outfits are things of one colour; `nondisjoint` shares items between train and test."""
    (folder / "images").mkdir(parents=True)
    metadata = {}
    for number, (_, colour, thing) in enumerate(PRODUCTS):
        item = str(1000 + number)
        metadata[item] = {
            "url_name": f"{colour} {thing}",
            "title": "" if number % 5 == 0 else f"{colour} {thing}", "description": "a nice one",
            "catgeories": [thing], "semantic_category": thing, "related": [thing],
            "category_id": str(THINGS.index(thing)),
        }  # fmt: skip
        if number != 3:
            (folder / "images" / f"{item}.jpg").write_bytes(picture(colour, thing))
    (folder / "polyvore_item_metadata.json").write_text(json.dumps(metadata))
    for variant, test_start in (("disjoint", 5), ("nondisjoint", 3)):
        inside = folder / variant
        inside.mkdir()
        for split, things in (
            ("train", range(5)),
            ("valid", range(3)),
            ("test", range(test_start, test_start + 5)),
        ):
            outfits = []
            for colour in range(4):
                if variant == "disjoint" and (split == "valid") != (colour == 3):
                    continue  # valid has a colour of its own
                items = [
                    {"item_id": str(1000 + colour * 10 + t), "index": i} for i, t in enumerate(things, 1)
                ]
                outfits.append({"set_id": f"{split}{colour}", "items": items})
            (inside / f"{split}.json").write_text(json.dumps(outfits))
            sets = [outfit["set_id"] for outfit in outfits]
            questions = []
            for place, name in enumerate(sets if len(sets) > 1 else []):
                others = [other for other in sets if other != name]
                answers = [f"{other}_2" for other in (others * 3)[:3]]
                answers.insert(place % 4, f"{name}_2")
                asked = [f"{name}_{i}" for i in range(1, len(list(things)) + 1) if i != 2]
                questions.append({"question": asked, "blank_position": 2, "answers": answers})
            if questions:
                if split == "test":
                    questions.append(
                        {"question": ["nowhere_1"], "blank_position": 1, "answers": ["a_1", "b_1"]}
                    )
                (inside / f"fill_in_blank_{split}.json").write_text(json.dumps(questions))


def table(folder: Path) -> None:
    """A shop as a spreadsheet has it, and as a saved Hugging Face dataset."""
    (folder / "photos").mkdir(parents=True)
    rows = []
    for number, (asin, colour, thing) in enumerate(PRODUCTS):
        photo = f"photos/{colour}-{thing}.png"
        if number % 5:
            (folder / photo).write_bytes(picture(colour, thing))
        text = f"a {colour} {thing}, solid, for the home"
        rows.append(
            [
                asin,
                f"{colour} {thing}",
                text,
                photo,
                f"{HOST}/{asin}.png" if number == 7 else "",
                f"{colour} things|{thing}s",
            ]
        )
    with (folder / "products.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["sku", "title", "description", "photo", "photo2", "tags"])
        writer.writerows(rows[:20])
        file.write("B1,too few cells\n")
        writer.writerows(rows[20:])
    names = [*(f"{c} things" for c in COLOURS), *(f"{t}s" for t in THINGS)]
    features = {
        "caption": {"dtype": "string", "_type": "Value"},
        "image": {"_type": "Image"},
        "tags": {"feature": {"names": names, "_type": "ClassLabel"}, "_type": "Sequence"},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    saved = folder / "saved"
    for split, part in (("train", PRODUCTS[::2] + PRODUCTS[1::4]), ("test", PRODUCTS[3::4])):
        made = pa.table(
            {
                "caption": [f"{c} {t}" for _, c, t in part],
                "image": [{"bytes": picture(c, t), "path": None} for _, c, t in part],
                "tags": [[names.index(f"{c} things"), names.index(f"{t}s")] for _, c, t in part],
            }
        ).replace_schema_metadata(metadata)
        (saved / split).mkdir(parents=True)
        file = "data-00000-of-00001.arrow"
        with (
            pa.OSFile(str(saved / split / file), "wb") as sink,
            pa.ipc.new_stream(sink, made.schema) as writer,
        ):
            writer.write_table(made)
        (saved / split / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": file}], "_split": split})
        )
    (saved / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))


def _gzipped(path: Path, lines: list[str]) -> None:
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write("".join(line + "\n" for line in lines).encode())


def main() -> None:
    for name in ("amazon", "xc", "released", "polyvore", "table"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / "amazon").mkdir()
    (HERE / "amazon" / "meta-2014.json").write_text("\n".join(amazon_2014()) + "\n", "utf-8")
    _gzipped(HERE / "amazon" / "meta-2018.json.gz", amazon_2018())
    (HERE / "amazon" / "meta-2023.jsonl").write_text("\n".join(amazon_2023()) + "\n", "utf-8")
    xc(HERE / "xc")
    released(HERE / "released")
    polyvore(HERE / "polyvore")
    table(HERE / "table")


if __name__ == "__main__":
    main()
