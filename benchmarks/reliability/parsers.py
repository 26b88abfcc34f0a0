"""Every parser of bytes from outside, as a small function that reads one input in memory or from tmpfs.

A parser of several kinds of files takes the kind from the first byte of the input. Seeds are the samples of
the tests and small files that the library itself writes.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial, partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
import torch
import xxhash
from fastapi.exceptions import RequestValidationError
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import save
from scipy.sparse import csr_matrix, save_npz
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mufin.config import Config
from mufin.data import images
from mufin.data.catalogue import Catalogue
from mufin.data.check_report import BadLines
from mufin.data.check_table import load_table
from mufin.data.formats import files, jsonl, parquet
from mufin.data.formats.files import Part
from mufin.data.formats.schema import Kind
from mufin.data.importers import imgbin, imported, polyvore, xc
from mufin.data.importers.amazon import fields
from mufin.data.item import Item
from mufin.data.items import Items, check_ids
from mufin.data.split import excluded_pairs, read_blanks, read_questions, read_sets, read_split
from mufin.errors import ConfigError, MufinError
from mufin.files import folder as model_folder
from mufin.files import tensors as tensor_files
from mufin.files.folder import MANIFEST, check_parts, manifest_text
from mufin.files.tensors import read_tensors
from mufin.model.manifest import REQUIRED_PARTS, read_model_manifest
from mufin.progress import Progress
from mufin.serve import images as served_images
from mufin.serve import requests, schemas
from mufin.serve.problem import Problem, invalid
from mufin.signals import SIGNALS
from mufin.signals.mixture import Mixture
from mufin.train import checkpoint

SAMPLES = Path(__file__).parents[2] / "tests" / "samples"
QUIET = Progress(quiet=True)
IDS = [f"i{number}" for number in range(6)]
ITEMS = Items.of([Item(id, [f"text {id}"]) for id in IDS])
KINDS: list[Kind] = ["items", "split", "filter", "sets", "questions"]
SIDE = 64  # pixels that images are scaled to


@dataclass(frozen=True)
class Parser:
    """How to read one input, and inputs to begin with."""

    read: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    name: str = "x.txt"  # its suffix tells the mutator what kind of file it is
    max_len: int = 2048
    errors: tuple[type[Exception], ...] = (MufinError,)  # those documented
    kinds: int = 1  # how many kinds of files; more than one: the first byte chooses


@cache
def scratch() -> Path:
    """Return the folder of this process."""
    scratch_of(os.getpid()).mkdir(exist_ok=True)
    return scratch_of(os.getpid())


def scratch_of(process: int) -> Path:
    """Return the folder of a process, in memory where possible."""
    memory = Path("/dev/shm")
    return (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"mufin-fuzz-{process}"


def remove_scratch(process: int) -> None:
    """Remove the folder of a process."""
    shutil.rmtree(scratch_of(process), ignore_errors=True)


def put(name: str, data: bytes) -> Path:
    """Write a file of the scratch folder."""
    path = scratch() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def kind_and_rest(data: bytes, kinds: int) -> tuple[int, bytes]:
    """Split an input into the kind that its first byte chooses and the content."""
    return (data[0] % kinds if data else 0), data[1:]


def quicken() -> None:
    """Save time that is spent on anything but parsing; changes modules for the whole process."""
    jsonl.BLOCK_BYTES = model_folder.HASH_BLOCK_BYTES = 1 << 16  # every read allocates a block
    # Handing a few bytes to another thread takes longer than reading them.
    jsonl.pj = SimpleNamespace(**vars(pj) | {"ReadOptions": partial(pj.ReadOptions, use_threads=False)})
    pq.ParquetFile.read = partialmethod(pq.ParquetFile.read, use_threads=False)
    imported.TOKEN = r"\w+"  # counts tokens; a regular expression for Unicode takes milliseconds to compile
    tensor_files.release = lambda *_: None  # reads /proc/self/smaps, which takes 15 ms
    images.MAX_PIXELS = 1 << 20  # instead of 10⁸: large images take their time to clear memory


# -- catalogues ----------------------------------------------------------------------------------------------


def use_table(path: Path, kind: Kind) -> None:
    """Read a table of a catalogue, and follow its ids."""
    names = jsonl.columns(path) if path.suffix == ".jsonl" else parquet.columns(path)
    files.kind_of("x", names)
    part = Part("x", kind, path)
    match kind:
        case "items":
            items = Items.from_file(files.read(path, kind), path)
            check_ids(items.ids, part)
            items.flat_texts()
            items.pictures.counts()
            _ = [items[row] for row in range(min(len(items), 8))]
        case "split":
            read_split(part, ITEMS, ITEMS, csr_matrix((len(ITEMS), len(ITEMS)), dtype=bool))
        case "filter":
            excluded_pairs(ITEMS, ITEMS, np.full(len(ITEMS), -1), part)
        case "sets":
            read_sets(part, ITEMS)
            read_blanks(part, ITEMS, seed=0)
        case _:
            read_questions(part, ITEMS)


def check_table(path: Path, kind: Kind) -> None:
    """Check a table as `mufin check` does."""
    try:
        checked = load_table(path, kind, [])
    except MufinError:
        return
    match kind:
        case "items":
            Items.from_file(checked.table, path).flat_texts()
        case "split":
            checked.check_split(ITEMS, ITEMS, True)
        case "filter":
            checked.find_rows("id", ITEMS, "item")
            checked.find_rows("label", ITEMS, "label")
        case "sets":
            checked.check_sets(ITEMS)
        case _:
            checked.check_questions(ITEMS)


ROWS: dict[str, list[dict[str, Any]]] = {
    "items": [
        {"id": "a", "title": "Oak desk", "texts": ["desk"], "images": ["a.png"], "category": "x"},
        {"id": "b", "texts": ["Lampe — Ω"], "related": ["a"], "image_urls": ["http://x/y.jpg"], "price": 1.5},
    ],
    "split": [{"id": "i0", "labels": ["i1", "i2"]}, {"id": "i3", "labels": []}],
    "filter": [{"id": "i0", "label": "i1"}, {"id": "i1", "label": "i0"}],
    "sets": [{"items": ["i0", "i1", "i2"], "blank": "i1"}, {"items": ["i3", "i4"]}],
    "questions": [{"query": ["i0", "i1"], "choices": ["i2", "i3"], "answer": 1}],
}


def jsonl_lines(data: bytes) -> None:
    kind, content = kind_and_rest(data, 2 * len(KINDS))
    (use_table, check_table)[kind % 2](put("x.jsonl", content), KINDS[kind // 2])


def jsonl_seeds() -> list[bytes]:
    found = []
    for number, kind in enumerate(KINDS):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS[kind]).encode()
        found += [bytes([kind]) + lines for kind in (2 * number, 2 * number + 1)]
    tolerated = b'\xef\xbb\xbf{"id": 1, "title": 7, "n": 3}\r\n\r\n{"id": "b", "texts": "x", "n": "y"}'
    return [*found, b"\0" + tolerated]


def parquet_file(data: bytes) -> None:
    kind, content = kind_and_rest(data, 2 * len(KINDS))
    path = put("x.parquet", content)
    parquet.columns(path)
    parquet.keeps_pictures(path)
    (use_table, check_table)[kind % 2](path, KINDS[kind // 2])


def parquet_seeds() -> list[bytes]:
    found = []
    for number, kind in enumerate(KINDS):
        rows = pa.Table.from_pylist(ROWS[kind])
        if kind == "items":
            rows = rows.set_column(rows.column_names.index("images"), "images", pa.array([[b"png"], []]))
        for options in ({"store_schema": False}, {"use_dictionary": False, "compression": "none"}):
            buffer = io.BytesIO()
            pq.write_table(rows, buffer, **options)
            found += [bytes([kind]) + buffer.getvalue() for kind in (2 * number, 2 * number + 1)]
    return found


TABLE = {"id": "sku", "text": ["title"], "image": ["photo"], "labels": "tags"}
TABLES = ("t.csv", "t.tsv", "t.jsonl")


def any_table(data: bytes) -> None:
    kind, content = kind_and_rest(data, len(TABLES))
    catalogue = Catalogue.from_table(put(TABLES[kind], content), **TABLE)
    assert catalogue.imported is not None
    catalogue.imported.lines()


def table_seeds() -> list[bytes]:
    raw = b'sku,title,photo,tags\n1,"Oak, desk",a.png|b.png,office|wood\n2,"two\nlines",http://x/y.png,red\n'
    line = b'{"sku": 1, "title": ["a", "b"], "photo": null, "tags": "x|y"}\n'
    return [b"\0" + raw, b"\1" + raw.replace(b",", b"\t"), b"\2" + line + line.replace(b"1", b"2")]


def dataset(data: bytes) -> None:
    kind, content = kind_and_rest(data, 3)
    names = ("d/dataset_dict.json", "d/train/state.json", "d/train/x.arrow")
    if not (scratch() / "d").exists():
        for name, seed in zip(names, dataset_files(), strict=True):
            put(name, seed)
    put(names[kind], content)
    try:
        Catalogue.from_dataset(scratch() / "d", text="caption", image="image", labels="tags")
    finally:
        put(names[kind], dataset_files()[kind])


def dataset_seeds() -> list[bytes]:
    return [bytes([number]) + raw for number, raw in enumerate(dataset_files())]


@cache
def dataset_files() -> list[bytes]:
    features = {"info": {"features": {"tags": {"names": ["red", "blue"]}}}}
    rows = pa.table({"caption": ["a", "b"], "image": [b"png", None], "tags": [[0], [1, 0]]})
    rows = rows.replace_schema_metadata({"huggingface": json.dumps(features)})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, rows.schema) as writer:
        writer.write_table(rows)
    return [b'{"splits": ["train"]}', b'{"_data_files": [{"filename": "x.arrow"}]}', buffer.getvalue()]


# -- other people's files ------------------------------------------------------------------------------------


def amazon(data: bytes) -> None:
    path = put("meta.json.gz" if data.startswith(b"\x1f\x8b") else "meta.json", data)
    bad_lines = BadLines()
    for found in fields.products(path, bad_lines, QUIET):
        found.validate(full=True)
    bad_lines.problems()


def amazon_seeds() -> list[bytes]:
    found = [
        b"{'asin': 'B01', 'title': \"Kids' \\u00e9 desk\\n\", 'price': None, 'imUrl': 'http://x/a.jpg',"
        b" 'related': {'also_bought': ['B02']}, 'categories': [['Home', 'Desk']]}\n",
        b'{"asin": "B02", "title": "Lamp", "imageURL": ["http://x/b.jpg"], "imageURLHighRes": [],'
        b' "also_buy": ["B01"], "main_cat": "Home"}\n',
        b'{"parent_asin": "B03", "title": "Rug", "images": [{"hi_res": null, "large": "http://x/c.jpg"}],'
        b' "bought_together": null, "main_category": "Home"}\n',
        b'{"ASIN": "B04", "title": "Vase", "images": ["http://x/d.jpg"], "also_buy": ["B03", ""]}\n',
        b"{'asin': 'B05', 'title': '\\x41\\101\\N{BULLET}', 'related': 3}\n",
    ]
    for name in ("meta-2014.json", "meta-2018.json.gz", "meta-2023.jsonl"):
        raw = (SAMPLES / "amazon" / name).read_bytes()
        found.append(raw if name.endswith(".gz") else b"".join(raw.splitlines(keepends=True)[:2]))
    return found


def xc_text(data: bytes) -> None:
    kind, content = kind_and_rest(data, 4)
    match kind:
        case 0:
            path = put("xc/trn_X_Y.txt", content)
            xc._read_targets(path.parent, "train", xc.XcTable(path, ITEMS, None), 4)
        case 1:
            list(xc._read_filter(put("xc/filter.txt", content), ITEMS.ids, ITEMS.ids))
        case 2:
            ids, texts = xc._read_raw(put("xc/train.raw.txt", content))
            xc._with_unique_ids(Items.from_table(pa.table({"id": ids, "texts": texts})), "points", [])
        case _:
            rows = xc._read_json(put("xc/trn.json", content), QUIET)
            xc._texts(rows)
            xc._offsets_and_rows(rows["target_ind"])


def xc_seeds() -> list[bytes]:
    points = b"6 4\n0:1.0 3:1.0\n\n1:1.0\n2:0.5\n0:1 1:1\n3:1\n"
    raw = b"u1->Oak_desk\nno arrow\nu1->\xe9\n"
    lines = b'{"uid": "a", "title": "t", "content": "c", "target_ind": [0, 1]}\n{"uid": 7, "title": ""}\n'
    return [bytes([kind]) + seed for kind, seed in enumerate((points, b"0 1\n5 2\n", raw, lines))]


def image_bin(data: bytes) -> None:
    kind, content = kind_and_rest(data, 2)
    folder = scratch() / "bin"
    index = folder / "train.img.bin.npz"
    if kind:
        put("bin/img.bin", bin_lines())
        put("bin/train.img.bin.npz", content)
    else:
        index.unlink(missing_ok=True)
        put("bin/img.bin", content)
    pictures = imgbin.find_images(folder, "train", ITEMS.ids, [])
    assert pictures is not None
    pictures.counts()
    _ = [pictures.row(row) for row in range(len(pictures))] if pictures.path.stat().st_size else []


def bin_lines() -> bytes:
    return b"i0\taGVsbG8=\ni1\tAAAA\ni0\tnot base64\ni5\tAA==\n"


def image_bin_seeds() -> list[bytes]:
    found = [b"\0" + bin_lines()]
    for compressed in (False, True):
        offsets = csr_matrix(np.array([[1, 0], [13, 0], [0, 0], [0, 0], [0, 0], [21, 39]]))
        buffer = io.BytesIO()
        save_npz(buffer, offsets, compressed)
        found.append(b"\1" + buffer.getvalue())
    return found


POLYVORE = {
    "polyvore_item_metadata.json": b'{"1": {"title": "Hat", "semantic_category": "hats"}, "2": {"url_name":'
    b' "red shoe"}, "3": {}}',
    "disjoint/train.json": b'[{"set_id": "s", "items": [{"item_id": "1", "index": 1}, {"item_id": "2",'
    b' "index": 2}]}, {"set_id": "t", "items": [{"item_id": "3", "index": 1}]}]',
    "disjoint/fill_in_blank_train.json": b'[{"question": ["s_1"], "blank_position": 2, "answers": ["s_2",'
    b' "t_1"]}]',
}


def polyvore_json(data: bytes) -> None:
    kind, content = kind_and_rest(data, len(POLYVORE))
    folder, changed = scratch() / "polyvore", list(POLYVORE)[kind]
    for name, raw in POLYVORE.items():
        if name == changed or not (folder / name).exists():
            put(f"polyvore/{name}", content if name == changed else raw)
    try:
        catalogue = polyvore.read_polyvore(Catalogue, folder)
        for name, part in catalogue.parts.items():
            (catalogue.from_sets if part.kind == "sets" else catalogue.questions)(name)
    finally:
        put(f"polyvore/{changed}", POLYVORE[changed])


def polyvore_seeds() -> list[bytes]:
    return [bytes([number]) + raw for number, raw in enumerate(POLYVORE.values())]


# -- model folders -------------------------------------------------------------------------------------------


def signed(data: bytes) -> bytes:
    """Give JSON the checksum that belongs to it, as somebody who makes up a folder would."""
    try:
        facts = json.loads(data)
        return manifest_text(facts).encode() if isinstance(facts, dict) else data
    except (ValueError, RecursionError):
        return data


def manifest(data: bytes) -> None:
    path = put(f"model/{MANIFEST}", signed(data))
    for entry in manifest_facts()["parts"].values():
        if not (path.parent / entry["file"]).exists():
            put(f"model/{entry['file']}", b"")
    found = read_model_manifest(path.parent)
    with suppress(ValueError, KeyError, TypeError, OverflowError):  # which `load` catches
        Mixture.of(SIGNALS, found["mixture"])
    check_parts(path.parent, found)


@cache
def manifest_facts() -> dict[str, Any]:
    """Return the content of a manifest whose parts are empty files."""
    parts, digest = {}, xxhash.xxh3_128_hexdigest(b"")
    for part in sorted(REQUIRED_PARTS):
        stem, _, rest = part.partition("/" if "/" in part else ".")
        name = f"{stem}-{digest[:10]}{'/' if '/' in part else '.'}{rest}"
        parts[part] = {"file": name, "size": 0, "hash": digest}
    return {
        "mufin": 3, "library": "1", "mixture": Mixture.of_beta(SIGNALS, 0.7).stored(), "own_items": False,
        "untrained": 0.5, "labels": 3, "trained_on": {}, "parts": parts,
    }  # fmt: skip


def manifest_seeds() -> list[bytes]:
    facts = manifest_facts()
    return [manifest_text(facts).encode(), json.dumps(facts).encode(), b"{}"]


def tensors(data: bytes) -> None:
    kind, content = kind_and_rest(data, 2)
    if kind:  # a header, which ends with the line, and what it describes
        header, _, rest = content.partition(b"\n")
        content = len(header).to_bytes(8, "little") + header + rest
    found = read_tensors(put("x.safetensors", content))
    for name in sorted(found.all):
        for get, arguments in (
            (found.get_floats, (name, None, None)),
            (found.get_rows, (name, 3)),
            (found.get_offsets, (name, 2, 3)),
            (found.get_sparse, (name.removesuffix(".data"), (2, 3))),
        ):
            with suppress(MufinError):
                get(*arguments)


def tensor_seeds() -> list[bytes]:
    numbers = torch.arange(3)
    sparse = {"m.data": torch.ones(3), "m.indices": numbers, "m.indptr": torch.tensor([0, 1, 3])}
    others = {"bags": torch.ones(2, 3), "half": torch.ones(2, 2).half(), "rows": numbers.clone()}
    files = [save({**sparse, **others}), save({"x": torch.zeros(0)}), save({"b": torch.ones(2).bool()})]
    found = [b"\0" + file for file in files]
    for file in files:
        end = 8 + int.from_bytes(file[:8], "little")
        found.append(b"\1" + file[8:end] + b"\n" + file[end:])
    return found


STATE = save({"state.x": torch.ones(2)})


def checkpoint_state(data: bytes) -> None:
    run = scratch() / "run"
    folder = run / checkpoint.FOLDER / "00001"
    if not folder.exists():
        for name in (checkpoint.STATE, checkpoint.KEPT):
            put(str((folder / name).relative_to(scratch())), STATE)
    (folder / checkpoint.FACTS).write_bytes(signed(data))
    found = checkpoint.Checkpoints(run, 1.0)
    found.stopped()
    found.resume({"settings": {"seed": 0}})


def checkpoint_seeds() -> list[bytes]:
    packed = {"dict": [["epoch", 1], ["x", {"tensor": "state.x"}], ["l", {"list": [1, "a", None]}]]}
    digest = xxhash.xxh3_128_hexdigest(STATE)
    facts = {
        "format": checkpoint.FORMAT, "module": "pretrain", "identity": {"settings": {"seed": 0}},
        "written": 1e9, "state": packed, "files": dict.fromkeys((checkpoint.STATE, checkpoint.KEPT), digest),
    }  # fmt: skip
    return [json.dumps(facts).encode(), json.dumps({**facts, "identity": {"settings": 1}}).encode()]


def settings(data: bytes) -> None:
    kind, content = kind_and_rest(data, 2)
    if kind:
        text = content.decode("utf-8", "replace")
        config = Config().override(text.splitlines())
    else:
        config = Config.read(put("x.toml", content))
    assert Config.read(put("again.toml", config.to_toml().encode())) == config


def settings_seeds() -> list[bytes]:
    lines = b'rank.beta=learnt\nfinetune.epochs=3\ntext.model="x"\nretrieve.entries=["bag"]'
    presets = [b"\0" + Config.preset(name).to_toml().encode() for name in ("paper", "best")]
    return [*presets, b"\0[rank]\nbeta = 0.5\n", b"\1" + lines]


# -- the service ---------------------------------------------------------------------------------------------

BODIES = (
    schemas.RecommendBody, schemas.ExplainBody, schemas.LabelsBody, schemas.IdsBody, schemas.ExamplesBody,
)  # fmt: skip


def request_body(data: bytes) -> None:
    kind, content = kind_and_rest(data, len(BODIES) + 1)
    form = kind == len(BODIES)
    content_type = b"multipart/form-data; boundary=b" if form else b"application/json"
    scope = {"type": "http", "method": "POST", "app": None, "headers": [(b"content-type", content_type)]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    request = Request(scope, receive)
    wanted = requests.form_body(request) if form else requests.json_body(request, BODIES[kind])
    try:
        body: Any = finished(wanted)
    except ValidationError as error:
        raise invalid(list(error.errors())) from None
    requests.count_values(content, 100)
    asked = getattr(body, "items", None) or getattr(body, "labels", ())
    for one in asked if kind != 3 else ():
        for image in one.images:
            served_images.decoded(served_images.from_base64(image, "image"), "image", SIDE)


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the request waits for something")


def request_seeds() -> list[bytes]:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), "red").save(buffer, "PNG")
    image = base64.b64encode(buffer.getvalue()).decode()
    bodies: list[Any] = [
        {"items": [{"texts": ["oak desk"], "images": [image]}, {"id": "a"}], "k": 3, "allow": ["x"],
         "explain": True, "min_probability": 0.5},
        {"item": {"texts": ["desk"]}, "label": "x"},
        {"labels": [{"id": "x", "texts": ["walnut"], "images": [image]}]},
        {"ids": ["a", "b"]},
        {"items": [{"texts": ["desk"]}], "labels": [["x"]]},
    ]  # fmt: skip
    parts = [b'name="text"\r\n\r\noak', b'name="k"\r\n\r\n3']
    parts.append(b'name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n' + buffer.getvalue())
    form = b"".join(b"--b\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts)
    return [
        *(bytes([number]) + json.dumps(body).encode() for number, body in enumerate(bodies)),
        bytes([len(BODIES)]) + form + b"--b--\r\n",
    ]


# -- images --------------------------------------------------------------------------------------------------


def image(data: bytes) -> None:
    images.suffix_of(data)
    images.load_pixels(data, SIDE)


def image_seeds() -> list[bytes]:
    gradient = Image.fromarray(np.arange(8 * 6 * 3, dtype=np.uint8).reshape(6, 8, 3))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = []
    for mode, format, options in (
        ("RGB", "JPEG", {"exif": exif}), ("L", "JPEG", {"progressive": True}), ("CMYK", "JPEG", {}),
        ("RGBA", "PNG", {}), ("P", "PNG", {"transparency": 0}), ("I;16", "PNG", {}), ("1", "PNG", {}),
        ("RGB", "WEBP", {}), ("RGBA", "WEBP", {"lossless": True}), ("P", "GIF", {"transparency": 1}),
        ("RGB", "BMP", {}), ("P", "BMP", {}), ("RGB", "TIFF", {}), ("L", "TIFF", {"compression": "tiff_lzw"}),
        ("1", "TIFF", {"compression": "group4"}), ("RGB", "TIFF", {"compression": "jpeg"}),
        ("F", "TIFF", {}), ("I;16", "TIFF", {"compression": "tiff_adobe_deflate"}),
    ):  # fmt: skip
        buffer = io.BytesIO()
        made = gradient.convert("L").convert("I").convert(mode) if mode == "I;16" else gradient.convert(mode)
        made.save(buffer, format, **options)
        found.append(buffer.getvalue())
    return found


SERVED = (MufinError, Problem, HTTPException, RequestValidationError)
PARSERS = {
    "jsonl": Parser(jsonl_lines, jsonl_seeds, "x.jsonl", 2560, kinds=2 * len(KINDS)),
    "parquet": Parser(parquet_file, parquet_seeds, "x.parquet", 4096, kinds=2 * len(KINDS)),
    "table": Parser(any_table, table_seeds, "x.csv", 1024, kinds=len(TABLES)),
    "dataset": Parser(dataset, dataset_seeds, "x.arrow", 4096, kinds=3),
    "amazon": Parser(amazon, amazon_seeds, "x.json", 1536),
    "xc": Parser(xc_text, xc_seeds, "x.txt", 512, kinds=4),
    "imgbin": Parser(image_bin, image_bin_seeds, "x.npz", 4096, kinds=2),
    "polyvore": Parser(polyvore_json, polyvore_seeds, "x.json", 2560, kinds=len(POLYVORE)),
    "manifest": Parser(manifest, manifest_seeds, "x.json", 4096),
    "tensors": Parser(tensors, tensor_seeds, "x.json", 2048, kinds=2),
    "checkpoint": Parser(checkpoint_state, checkpoint_seeds, "x.json", 1024),
    "settings": Parser(settings, settings_seeds, "x.toml", 4096, (ConfigError,), kinds=2),
    "requests": Parser(request_body, request_seeds, "x.json", 1536, SERVED, kinds=len(BODIES) + 1),
    "images": Parser(image, image_seeds, "x.png", 2048),
}  # fmt: skip
