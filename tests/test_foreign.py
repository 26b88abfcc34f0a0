"""Model folders that somebody else made up: nothing in them runs, and nothing in them ends the process."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.errors import ModelError, MufinError, UsageError
from mufin.files.folder import file_hash, manifest_text
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.entries import Entries
from mufin.signals.compatibility import Compatibility

ASKED = [Item("q", ["red circle"]), Item("r", ["bar 7"])]
HUGE = 10**9


@pytest.fixture(scope="module")
def made(shop: Catalogue, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with every signal, and a faiss file."""
    settings = [
        "text.words=true", "text.pretrained_similarity=true", "memory.neighbours=5", "rank.beta=learnt",
        "retrieve.search=approximate", "pretrain.epochs=1", "finetune.epochs=1",
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("made") / "run"
    fit(shop, tiny_config.override(settings), path, quiet=True)
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def part(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / "mufin.json").read_text())["parts"][name]["file"]


def resign(folder: Path) -> None:
    """Make the manifest agree with the files."""
    manifest = json.loads((folder / "mufin.json").read_text())
    for entry in manifest["parts"].values():
        path = folder / entry["file"]
        entry.update(size=path.stat().st_size, hash=file_hash(path))
    (folder / "mufin.json").write_text(manifest_text(manifest))


def refused(folder: Path, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


# -- code ---------------------------------------------------------------------------------------------------

EVIL = """
from pathlib import Path
from transformers import {base}
Path({proof!r}).write_text("ran")
class Evil({base}):
    model_type = "evil"
"""


@pytest.mark.parametrize("listed", [True, False], ids=["in the manifest", "beside it"])
@pytest.mark.parametrize(
    ("file", "base", "key"),
    [
        ("text/config.json", "PretrainedConfig", "AutoConfig"),
        ("vision/config.json", "PretrainedConfig", "AutoConfig"),
        ("text/tokenizer_config.json", "PreTrainedTokenizerFast", "AutoTokenizer"),
    ],
)
def test_code_in_a_folder_does_not_run(
    file: str,
    base: str,
    key: str,
    listed: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even where somebody says yes to every question."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    proof, path = tmp_path / "proof", part(folder, f"layout/{file}")
    named = ["evil.Evil", "evil.Evil"] if key == "AutoTokenizer" else "evil.Evil"
    mine = {"model_type": "evil", "tokenizer_class": "Evil", "auto_map": {key: named}}
    path.write_text(json.dumps(json.loads(path.read_text()) | mine))
    (path.parent / "evil.py").write_text(EVIL.format(base=base, proof=str(proof)))
    if listed:
        manifest = json.loads((folder / "mufin.json").read_text())
        name = f"layout/{Path(file).parent}/evil.py"
        added = {"file": str((path.parent / "evil.py").relative_to(folder)), "size": 0, "hash": "0" * 32}
        manifest["parts"][name] = added
        (folder / "mufin.json").write_text(manifest_text(manifest))
    resign(folder)
    try:
        load(folder).recommend(ASKED)
    except MufinError:
        pass
    else:
        assert key == "AutoTokenizer"  # which transformers may build by the type of the model
    assert not proof.exists(), "a model folder ran its own code"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("text/config.json", {"model_type": "surprise"}),
        ("text/config.json", {"model_type": None}),
        ("text/config.json", {"num_hidden_layers": HUGE}),
        ("text/config.json", {"num_hidden_layers": 10**400}),
        ("text/config.json", {"hidden_size": 1 << 40}),
        ("text/config.json", {"vocab_size": 1 << 24}),
        ("text/config.json", {"vocab_size": -1}),
        ("text/config.json", {"hidden_size": "wide"}),
        ("text/config.json", {"num_attention_heads": 0}),
        ("text/config.json", {"hidden_act": "boom"}),
        ("vision/config.json", {"image_size": 1 << 23}),
        ("vision/config.json", {"patch_size": 0}),
        ("vision/preprocessor_config.json", {"image_mean": "grey"}),
        ("text/tokenizer.json", {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": [[1]]}}),
    ],
    ids=str,
)
def test_layouts_that_make_no_encoder(file: str, change: dict[str, Any], folder: Path) -> None:
    path = part(folder, f"layout/{file}")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    resign(folder)
    with pytest.raises(MufinError):
        load(folder)
    path.write_text("[" * 100_000)
    resign(folder)
    with pytest.raises(MufinError):
        load(folder)


# -- arrays -------------------------------------------------------------------------------------------------


def at(place: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed.view(-1)[place] = value
        return changed

    return change


POINTERS = {
    "labels.safetensors": ["offsets"],
    "index.safetensors": ["labels"],
    "points.safetensors": ["offsets", "labels"],
    "words.safetensors": [
        "labels.indices", "labels.indptr", "points.indices", "points.indptr", "by_word.indices",
        "by_word.indptr",
    ],
    "titles.safetensors": [
        "labels.indices", "labels.indptr", "title_labels.offsets", "title_labels.labels",
    ],
}  # fmt: skip
WRONG = {
    "huge": at(-1, HUGE), "huge first": at(0, HUGE), "huge within": at(2, HUGE), "negative": at(1, -1),
    "negative first": at(0, -7), "float": lambda t: t.float(), "bytes": lambda t: t.to(torch.uint8),
    "flat": lambda t: t[None].clone(), "short": lambda t: t[:-1].clone(), "long": lambda t: torch.cat([t, t]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("file", "name"), [(file, name) for file, names in POINTERS.items() for name in names], ids=str
)
def test_arrays_that_point_out_of_others(file: str, name: str, folder: Path) -> None:
    """A search follows these numbers: one out of range reads memory that is not its own."""
    path = part(folder, file)
    tensors = load_file(path)
    if name.startswith("title_labels."):  # which this catalogue has none of
        points = load_file(part(folder, "points.safetensors"))
        tensors |= {f"title_labels.{key}": points[key].clone() for key in ("offsets", "labels")}
    for how, change in WRONG.items():
        if how in ("short", "long") and name in ("labels", "title_labels.labels"):
            continue  # checked with the offsets of the same lists, whose message it is
        save_file(tensors | {name: change(tensors[name])}, path)
        resign(folder)
        with pytest.raises(ModelError, match=Path(file).stem):
            load(folder)
    save_file(tensors, path)
    resign(folder)
    assert load(folder).recommend(ASKED)


@pytest.mark.parametrize(
    "file", [f"{name}.safetensors" for name in ("labels", "index", "memory", "words", "pretrained")]
)
def test_tensors_of_another_shape_or_kind(file: str, folder: Path) -> None:
    path = part(folder, file)
    tensors = load_file(path)
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t[..., :-1].clone(),
        lambda t: t[None].clone(),
        lambda t: t.to(torch.complex64),
    ]
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            for change in changes:
                save_file(tensors | {name: change(tensor)}, path)
                resign(folder)
                with pytest.raises(ModelError):
                    load(folder)


def test_label_pictures_that_are_paths(folder: Path) -> None:
    """A path in the place of a picture would publish any file of the machine that serves the model."""
    path = part(folder, "labels.parquet")
    table = pq.read_table(path)
    if "images" in table.column_names:
        table = table.drop_columns(["images"])
    paths = pa.array([["/etc/hostname"]] * len(table), pa.list_(pa.string()))
    pq.write_table(table.append_column("images", paths), path)
    resign(folder)
    refused(folder, "images must be bytes")


# -- in a process with little memory ------------------------------------------------------------------------

# Loads, asks and saves each folder, and says what came of it; ends if anything runs or is written elsewhere.
GUARDED = """
import os, resource, sys, tempfile
from pathlib import Path
from mufin import Item, load, save
from mufin.errors import MufinError
load(sys.argv[1]).recommend([Item("q", ["red circle"])])  # imports everything
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
inside = (str(Path(sys.argv[2]).resolve()), tempfile.gettempdir() + "/torch", "/dev/null")
def watch(event, args):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class"):
        os.write(1, f"RAN {event} {args}\\n".encode()); os._exit(9)
    if event in ("socket.connect", "socket.getaddrinfo"):
        os.write(1, f"ASKED {args}\\n".encode()); os._exit(9)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        if not os.path.realpath(os.fspath(args[0])).startswith(inside):
            os.write(1, f"WROTE {args}\\n".encode()); os._exit(9)
sys.addaudithook(watch)
for folder in sys.argv[3:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        model = load(folder)
        model.recommend([Item("q", ["a" * 20_000 + "!"]), Item("r", ["red circle"])])
        model.add_labels(Item("new", ["new"]))
        save(model, folder)
        said = "kept"
    except MufinError as error:
        said = f"refused {' '.join(str(error).split())}"
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(Path(folder).name, more, said, flush=True)
"""
PICKLE = b'cbuiltins\nexec\n(S\'open("{}", "w").close()\'\ntR.'


def change_json(folder: Path, name: str, **values: Any) -> None:
    path = part(folder, name)
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def add_part(folder: Path, name: str, content: bytes) -> None:
    """Add a file to a layout folder and list it."""
    layout = part(folder, "layout/text/config.json").parents[1]
    path = layout / name.removeprefix("layout/")
    path.write_bytes(content)
    manifest = json.loads((folder / "mufin.json").read_text())
    manifest["parts"][name] = {"file": str(path.relative_to(folder)), "size": 0, "hash": "0" * 32}
    (folder / "mufin.json").write_text(manifest_text(manifest))


def rename_part(folder: Path, file: str) -> None:
    manifest = json.loads((folder / "mufin.json").read_text())
    manifest["parts"]["network.safetensors"]["file"] = file
    (folder / "mufin.json").write_text(manifest_text(manifest))


def declared(shape: list[int], offsets: list[int], length: int | None = None) -> bytes:
    header = json.dumps({"bags": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    return (len(header) if length is None else length).to_bytes(8, "little") + header


def replacing(content: str, times: int) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times}


def charsmap(piece: bytes) -> dict[str, Any]:
    found = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + piece + b"\0").decode()
    return {"type": "Precompiled", "precompiled_charsmap": found}


def split_by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def many_labels(folder: Path, rows: int) -> None:
    """A Parquet file of a few kilobytes with so many rows, and a manifest that says the same."""
    table = pq.read_table(part(folder, "labels.parquet")).slice(0, 1)
    table = pa.concat_tables([table.take(pa.array([0] * 1024))] * (rows // 1024))
    pq.write_table(table, part(folder, "labels.parquet"), compression="zstd")
    manifest = json.loads((folder / "mufin.json").read_text())
    (folder / "mufin.json").write_text(manifest_text(manifest | {"labels": rows}))


def linked(folder: Path, name: str) -> None:
    """Move a part out of the folder, and leave a link in its place."""
    path, away = part(folder, name), folder.parent.parent / "away" / folder.name
    away.parent.mkdir(exist_ok=True)
    path = path.parents[1] if name.startswith("layout/") else path
    shutil.move(path, away)
    path.symlink_to(away)


TEXT = "layout/text"
HOSTILE: dict[str, Callable[[Path], Any]] = {
    "manifest-up": lambda f: rename_part(f, "network-0123456789/../../away"),
    "manifest-absolute": lambda f: rename_part(f, "/etc/network-0123456789.safetensors"),
    "manifest-nul": lambda f: rename_part(f, "network-0123456789.safetensors\0"),
    "manifest-deep": lambda f: (f / "mufin.json").write_text("[" * 1_000_000),
    "manifest-giant": lambda f: (f / "mufin.json").write_bytes(b"[" + b"[]," * 20_000_000),
    "shape-giant": lambda f: part(f, "labels.safetensors").write_bytes(declared([1 << 40, 1 << 20], [0, 0])),
    "shape-overflow": lambda f: part(f, "labels.safetensors").write_bytes(declared([1 << 62, 4], [0, 0])),
    "shape-offsets": lambda f: part(f, "labels.safetensors").write_bytes(declared([4], [1 << 60, 1 << 61])),
    "header-giant": lambda f: part(f, "labels.safetensors").write_bytes(declared([4], [0, 16], 1 << 60)),
    "rows-many": lambda f: many_labels(f, 1 << 22),
    "pickle-bin": lambda f: add_part(f, f"{TEXT}/pytorch_model.bin", PICKLE),
    "pickle-pt": lambda f: add_part(f, f"{TEXT}/model.pt", PICKLE),
    "pickle-pkl": lambda f: add_part(f, f"{TEXT}/vocab.pkl", PICKLE),
    "pickle-ckpt": lambda f: add_part(f, f"{TEXT}/model.ckpt.index", PICKLE),
    "pickle-args": lambda f: add_part(f, f"{TEXT}/training_args.bin", PICKLE),
    "pickle-network": lambda f: part(f, "network.safetensors").write_bytes(PICKLE),
    "pickle-labels": lambda f: part(f, "labels.parquet").write_bytes(PICKLE),
    "jinja": lambda f: change_json(
        f, f"{TEXT}/tokenizer_config.json", chat_template="{{ ''.__class__.__mro__[1].__subclasses__() }}"
    ),
    "jinja-file": lambda f: add_part(f, f"{TEXT}/chat_template.jinja", b"{% for i in range(10**9) %}"),
    "json-giant": lambda f: part(f, f"{TEXT}/config.json").write_bytes(b'{"a": [' + b"[]," * 5_000_000),
    "json-deep": lambda f: part(f, f"{TEXT}/tokenizer_config.json").write_text('{"a":' * 500_000),
    "toml-giant": lambda f: part(f, "config.toml").write_text("a = [" + "[]," * 5_000_000 + "]"),
    "regex-slow": lambda f: change_json(f, f"{TEXT}/tokenizer.json", pre_tokenizer=split_by("(a+)+b")),
    "regex-deep": lambda f: change_json(f, f"{TEXT}/tokenizer.json", pre_tokenizer=split_by("(" * 100_000)),
    "text-grows": lambda f: change_json(f, f"{TEXT}/tokenizer.json", normalizer=replacing("aa", 40)),
    "text-explodes": lambda f: change_json(
        f, f"{TEXT}/tokenizer.json", normalizer=replacing("b" * 1_000_000, 1)
    ),
    "text-mapped": lambda f: change_json(f, f"{TEXT}/tokenizer.json", normalizer=charsmap(b"b" * 1_000_000)),
    "link-file": lambda f: linked(f, "network.safetensors"),
    "link-folder": lambda f: linked(f, f"{TEXT}/config.json"),
}  # fmt: skip
HARMLESS = {
    "jinja",
    "jinja-file",
    "pickle-bin",
    "pickle-pt",
    "pickle-pkl",
    "pickle-ckpt",
    "pickle-args",
    "link-file",
}


def test_hostile_folders_in_little_memory(made: Path, tmp_path: Path) -> None:
    """None runs code, writes elsewhere, asks a host, ends the process or takes a gigabyte."""
    proof, folders = tmp_path / "proof", []
    for name, spoil in HOSTILE.items():
        folder = Path(shutil.copytree(made, tmp_path / "runs" / name))
        spoil(folder)
        if name.startswith("pickle"):
            for path in folder.rglob("*"):
                if path.is_file() and path.read_bytes() == PICKLE:
                    path.write_bytes(PICKLE.replace(b"{}", str(proof).encode()))
            (folder / "model.pkl").write_bytes(PICKLE.replace(b"{}", str(proof).encode()))
        if not name.startswith("manifest"):
            resign(folder)
        folders.append(folder)
    away = {path: path.read_bytes() for path in (tmp_path / "away").rglob("*") if path.is_file()}
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, str(made), str(tmp_path / "runs"), *map(str, folders)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-400:]
    said = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert {*said} == {*HOSTILE}
    assert {name for name, (_, what, *_) in said.items() if what == "kept"} <= HARMLESS
    assert not {name: more for name, (more, *_) in said.items() if int(more) > 1000}
    assert not proof.exists()
    assert {path: path.read_bytes() for path in (tmp_path / "away").rglob("*") if path.is_file()} == away


# -- faiss --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [300, 21_000], ids=["graph", "lists"])
def test_faiss_files_that_were_changed(n: int, tmp_path: Path) -> None:
    """Wherever a number is put that leads elsewhere: it is refused, or only codes are changed by it."""
    rng = np.random.default_rng(n)
    vectors = torch.nn.functional.normalize(
        torch.from_numpy(rng.normal(size=(n, 16)).astype(np.float32)), dim=1
    )
    entries = Entries(vectors, torch.arange(n), n)
    whole = tmp_path / "whole.faiss"
    ApproximateIndex(entries, queries=vectors[:8]).save(whole)
    data, count = whole.read_bytes(), 0
    assert ApproximateIndex.load(whole, entries).search(vectors[:3], 10).labels[:, 0].tolist() == [0, 1, 2]
    for number in range(150):
        place = int(rng.integers(0, len(data) if number % 2 else 2048)) // 4 * 4
        value = int(rng.choice([-1, -2, 0, 1 << 31, 1 << 40, HUGE, n, -(1 << 63)]))
        changed = data[:place] + value.to_bytes(8, "little", signed=True) + data[place + 8 :]
        path = tmp_path / "changed.faiss"
        path.write_bytes(changed[: len(data)])
        try:
            ApproximateIndex.load(path, entries).search(vectors[:3], 10)
        except ModelError:
            count += 1
        path.unlink()  # the next one is another file: this one may still be mapped
    assert count > 30


def test_a_faiss_file_of_other_entries(folder: Path) -> None:
    vectors = torch.nn.functional.normalize(torch.randn(30, 16), dim=1)
    ApproximateIndex(Entries(vectors, torch.arange(30), 30), queries=vectors).save(
        part(folder, "index.faiss")
    )
    resign(folder)
    refused(folder, "holds \\(30, 16\\) vectors")


def test_a_compatibility_whose_tensors_do_not_fit() -> None:
    sides = {f"{name}.{key}": torch.zeros(shape) for name in ("points", "labels")
             for key, shape in (("mean", (6,)), ("basis", (6, 3)), ("shift", (3,)))}  # fmt: skip
    pairs = {f"pairs.{key}": torch.zeros(5, 3) for key in ("points", "labels")} | {
        "pairs.weight": torch.ones(5)
    }
    view = {**sides, **pairs, "correlation": torch.zeros(3)}
    good = {f"sets.0.{name}": tensor for name, tensor in view.items()} | {"mixture": torch.zeros(3)}
    assert Compatibility.of(good).sets
    for name, tensor in good.items():
        for changed in (tensor[..., :-1], tensor[None], tensor.double()):
            if name == "mixture" and changed.dtype == torch.float64:
                continue
            with pytest.raises(UsageError):
                Compatibility.of(good | {name: changed})


def test_a_faiss_file_on_a_full_disk_is_an_os_error() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(30, 16), dim=1)
    index = ApproximateIndex(Entries(vectors, torch.arange(30), 30), queries=vectors)
    with pytest.raises(OSError, match="No space left|could not"):
        index.save(Path("/dev/full"))


# -- bits ---------------------------------------------------------------------------------------------------


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("name", ["network.safetensors", "mufin.json"])
def test_every_single_bit_counts(name: str, folder: Path) -> None:
    path = folder / name if name == "mufin.json" else part(folder, name)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for bit in rng.integers(0, 8 * len(data), 30).tolist():
        path.write_bytes(flipped(data, bit))
        refused(folder, path.name)


def test_a_bit_of_a_large_file_counts(tmp_path: Path) -> None:
    """Files over 64 MB were once checked by samples."""
    path, rng = tmp_path / "large", np.random.default_rng(0)
    path.touch()
    with path.open("r+b") as file:
        file.truncate(80 << 20)
        before = file_hash(path)
        for place in rng.integers(0, 80 << 20, 10).tolist():
            file.seek(place)
            file.write(b"\1")
            file.flush()
            assert file_hash(path) != before, place
            file.seek(place)
            file.write(b"\0")
            file.flush()


def test_saving_repairs_a_damaged_part(folder: Path) -> None:
    model: Mufin = load(folder)
    path = part(folder, "network.safetensors")
    path.write_bytes(flipped(path.read_bytes(), 9000))
    refused(folder, "network-.*hash mismatch")
    save(model, folder)
    assert load(folder).recommend(ASKED) == model.recommend(ASKED)
