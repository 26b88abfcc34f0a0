"""Model folders that somebody else made up: nothing in them runs, and nothing in them ends the process."""

from __future__ import annotations

import json
import shutil
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
