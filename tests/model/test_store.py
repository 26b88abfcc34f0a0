"""The model folder: what is saved is what is loaded, a kill leaves it whole, damage is said in a sentence."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from made import made_shop, picture
from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.data.items import Items
from mufin.data.pictures import StoredPictures
from mufin.errors import ConfigError, ModelError
from mufin.files.folder import file_hash, manifest_text
from mufin.model.info import describe
from mufin.model.store import save_labels
from mufin.retrieve.approximate import ApproximateIndex
from mufin.retrieve.lists import Lists
from mufin.signals import signals_of
from mufin.signals.memory import Memory
from mufin.signals.mixture import Mixture

ASKED = [Item("q", ["red circle"], [picture("red", "circle")]), Item("r", ["bar 7"])]


@pytest.fixture(scope="module")
def saved(tiny_model: Mufin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run"
    save(tiny_model, path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A model folder that may be harmed."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def part(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / "mufin.json").read_text())["parts"][name]["file"]


def forge(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    """Change a part and make the manifest agree with it."""
    path = part(folder, name)
    change(path)
    facts = {"size": path.stat().st_size, "hash": file_hash(path)}
    resign(folder, lambda manifest: manifest["parts"][name].update(facts))


def resign(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest, and its checksum with it."""
    manifest = json.loads((folder / "mufin.json").read_text())
    change(manifest)
    (folder / "mufin.json").write_text(manifest_text(manifest))


def contents(folder: Path) -> dict[str, str]:
    """A hash of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


# -- there and back -----------------------------------------------------------------------------------------


def test_loaded_is_what_was_saved(tiny_model: Mufin, saved: Path, shop: Catalogue) -> None:
    again = load(saved, exact=True)
    items = [*shop.items, *ASKED]
    assert again.recommend(items, k=7) == tiny_model.recommend(items, k=7)  # equal floats
    assert torch.equal(again.embed(items).values, tiny_model.embed(items).values)
    assert again.config == tiny_model.config
    assert torch.equal(again.mixture.weights, tiny_model.mixture.weights)
    assert again.mixture.stored() == tiny_model.mixture.stored()
    assert len(again.labels) == 7


def test_settings_without_effect_are_loaded(saved: Path, tmp_path: Path) -> None:
    """Such settings can come about step by step; a file of a user's that has them is refused."""
    model = load(saved)
    model.config = model.config.model_copy(deep=True)
    model.config.pretrain.margin = 0.31  # the loss is a softmax
    save(model, tmp_path / "run")
    assert load(tmp_path / "run").config == model.config
    assert describe(tmp_path / "run")
    with pytest.raises(ConfigError, match="pretrain.margin.*no effect"):
        Config.read(part(tmp_path / "run", "config.toml"))


def test_many_label_pictures_stay_in_their_file(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder = load(saved), tmp_path / "run"
    model.add_labels(Item("new", ["a new label"], [picture("red", "circle")]))
    save(model, folder)
    before = [label.images for label in load(folder).labels.items]
    monkeypatch.setattr("mufin.model.parts.IMAGE_BYTES_IN_MEMORY", 0)
    lazy = load(folder)
    assert isinstance(lazy.labels.items.pictures, StoredPictures)
    lazy.remove_labels(lazy.labels.items[0].id)
    save(lazy, folder)  # takes the place of the file that the pictures are read from
    assert any(before)
    assert [label.images for label in lazy.labels.items] == before[1:]
    assert [label.images for label in load(folder).labels.items] == before[1:]


def test_a_large_memory_is_saved_with_its_index(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load(saved)
    keys = torch.nn.functional.normalize(torch.randn(30, plain.config.embed.dim), dim=1)
    config = plain.config.override(["memory.neighbours=3"])
    signals = [*plain.signals, Memory(config.memory, keys)]
    points = Lists(torch.arange(31), torch.arange(30) % 7)
    parts = plain.embedder, plain.ranker, plain.labels, signals, Mixture.of_beta(signals, 0.7), points
    model = Mufin(config, *parts)
    monkeypatch.setattr("mufin.retrieve.build.EXACT_MAX_ENTRIES", 20)
    save(model, tmp_path / "run")
    again = load(tmp_path / "run")
    memory = next(signal for signal in again.signals if isinstance(signal, Memory))
    assert isinstance(vars(memory)["index"], ApproximateIndex)
    assert again.recommend(ASKED, k=7) == model.recommend(ASKED, k=7)
    save(plain, tmp_path / "run")
    assert not list((tmp_path / "run").glob("memory-*.faiss"))


@pytest.mark.parametrize(
    "changes",
    [
        ("rank.cross=concat", "embed.attention=feedforward"),
        ("rank.cross=none", "embed.attention=none", "embed.projection=maxpool"),
        ("text.train_layers=1", "vision.train_layers=all", "rank.alpha=one"),
        ("embed.bag=raw",),
        ("embed.bag=raw", "rank.cross=concat", 'retrieve.entries=["vector"]'),
        ("modalities=text", 'retrieve.entries=["vector"]', "run.pictures=false"),
    ],
    ids=" ".join,
)
def test_every_kind_of_model(changes: tuple[str, ...], tiny_config: Config, tmp_path: Path) -> None:
    short = ("pretrain.epochs=1", "finetune.epochs=1")
    model = fit(made_shop(2), tiny_config.override([*short, *changes]), quiet=True)
    save(model, tmp_path)
    assert load(tmp_path, exact=True).recommend(ASKED, k=7) == model.recommend(ASKED, k=7)


def test_saving_again_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    model = load(folder)
    model.recommend(ASKED)  # tokenizers remember how they were called
    save(model, folder)
    assert contents(folder) == before


def test_new_labels_rewrite_the_labels_alone(folder: Path) -> None:
    before = contents(folder)
    model = load(folder)
    model.add_labels(Item("new", ["zebra"]))
    save(model, folder)
    after = contents(folder)
    changed = {name.partition("-")[0] for name in before.keys() ^ after.keys()}
    assert changed == {"labels", "index"}
    assert all(
        before[name] == after[name] for name in before.keys() & after.keys() - {"mufin.json", "README.md"}
    )
    assert len([name for name in after if name.startswith("labels-")]) == 2  # no old ones are left
    assert load(folder).recommend(ASKED, k=9) == model.recommend(ASKED, k=9)


def test_saving_the_labels_alone_leaves_the_same_folder(folder: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(folder, tmp_path / "whole"))
    model = load(folder)
    model.add_labels(Item("new", ["zebra"], [picture("red", "bar")]))
    model.remove_labels("q-bar")
    save_labels(model, folder)
    save(model, whole)
    assert contents(folder) == contents(whole)
    assert load(folder).recommend(ASKED, k=9) == model.recommend(ASKED, k=9)


def test_another_model_over_the_same_folder(folder: Path, tiny_config: Config) -> None:
    other = fit(made_shop(2), tiny_config.override(["modalities=text", "pretrain.epochs=1"]), quiet=True)
    save(other, folder)
    assert load(folder, exact=True).recommend(ASKED, k=9) == other.recommend(ASKED, k=9)
    assert not list(folder.glob("layout-*/vision"))
    assert len(list(folder.glob("layout-*"))) == 1


def test_only_what_a_manifest_of_ours_named_is_removed(folder: Path) -> None:
    """Users keep files of like names beside a model; each name below was once taken for a part."""
    names = [
        "config-mine.toml", "labels-2024.parquet", "memory-2023.safetensors", "index-of-photos.faiss",
        "layout-drawings/plan.txt", "labels-0000000000.safetensors", "map-town.json", "map-0123456789.json",
        ".saving-mine/a.txt", ".mufin-saving-mine/a.txt", "mufin.json.tmp", ".mufin.json.tmp", "notes.txt",
    ]  # fmt: skip
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    model = load(folder)
    model.add_labels(Item("new", ["zebra"]))
    save(model, folder)
    model.remove_labels("new")
    save_labels(model, folder)
    assert [name for name in names if not (folder / name).is_file()] == []


def test_a_file_of_the_user_in_the_layout_is_said_and_kept(folder: Path, tiny_config: Config) -> None:
    mine = next(folder.glob("layout-*")) / "mine.txt"
    mine.write_text("mine")
    fails(folder, "mine.txt is not part of the model")
    other = fit(made_shop(2), tiny_config.override(["modalities=text", "pretrain.epochs=1"]), quiet=True)
    save(other, folder)
    assert [path.name for path in mine.parent.iterdir()] == ["mine.txt"]


def test_what_a_killed_save_left_is_removed_by_the_next(folder: Path) -> None:
    left = folder / ".mufin-saving-dead"
    left.mkdir()
    (left / "network.safetensors").write_bytes(b"half")
    inside = ["labels-0000000000.safetensors", "layout-0000000000/text/config.json", "../outside.txt"]
    (left / "record.json").write_text(json.dumps([*inside, "notes.txt", *contents(folder)]))
    kept = contents(folder)
    for name in [*inside, "notes.txt"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    save(load(folder), folder)
    assert contents(folder).keys() - kept.keys() == {"notes.txt"}
    assert not (folder / "layout-0000000000").exists()
    assert (folder.parent / "outside.txt").exists()


def test_nothing_behind_a_link_is_removed(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "a.txt").write_text("mine")
    (folder / "layout-0000000000").symlink_to(mine)
    (folder / ".mufin-saving-link").symlink_to(mine)
    (mine / "record.json").write_text('["layout-0000000000/a.txt"]')
    (folder / ".mufin.lock").unlink()
    (folder / ".mufin.lock").symlink_to(mine / "a.txt")
    model = load(folder)
    with pytest.raises(ModelError, match=r"\.mufin\.lock is a link"):
        save(model, folder)
    (folder / ".mufin.lock").unlink()
    save(model, folder)
    assert (mine / "a.txt").read_text() == "mine"


def test_nothing_is_pickled_and_nothing_names_a_path_of_here(
    saved: Path, tiny_encoders: tuple[str, str]
) -> None:
    suffixes = {path.suffix for path in saved.rglob("*") if path.is_file() and path.name != ".mufin.lock"}
    assert suffixes <= {".md", ".json", ".toml", ".safetensors", ".parquet", ".txt", ".faiss"}
    here = os.fsencode(tiny_encoders[0])
    for path in saved.rglob("*"):
        if path.is_file() and not path.name.startswith("config-"):  # the settings say what was asked for
            assert here not in path.read_bytes(), path.name


def test_files_are_as_open_as_the_user_wants(saved: Path) -> None:
    modes = {stat.S_IMODE(path.stat().st_mode) for path in saved.rglob("*") if path.is_file()}
    assert len(modes) == 1


def test_the_folder_can_be_moved(folder: Path, tiny_model: Mufin, tmp_path: Path) -> None:
    moved = tmp_path / "else where" / "é"
    moved.parent.mkdir()
    folder.rename(moved)
    assert load(str(moved), exact=True).recommend(ASKED) == tiny_model.recommend(ASKED)


def test_values_that_are_not_finite_are_not_saved(folder: Path) -> None:
    before = contents(folder)
    model = load(folder)
    model.labels.weights[2, 1] = torch.nan
    with pytest.raises(ModelError, match="weights.*not finite.*learning rate"):
        save(model, folder)
    assert contents(folder) == before


def test_an_unknown_device(saved: Path) -> None:
    for name in ("gpu", "cuda:99", ""):
        with pytest.raises(ConfigError, match="device.*cannot be used"):
            load(saved, device=name)


# -- a kill at any step -------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends a save as a kill does: nothing after it runs, nothing is tidied up."""


def killed_at(step: int, model: Mufin, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Save, killed at this operation on files; False when there are not so many."""
    seen = 0

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Path, *rest: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == step:
                raise Killed
            if seen > step:  # the dead do nothing
                return None
            return real(self, *rest, **more)

        return counted

    with monkeypatch.context() as patched:
        for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "rmdir"), (shutil, "rmtree")):
            patched.setattr(owner, name, counting(getattr(owner, name)))
        try:
            save(model, folder)
        except Killed:
            return True
    return False


def test_a_kill_at_any_step_leaves_the_old_model_or_the_new(
    saved: Path, tiny_model: Mufin, tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model with other encoders' layouts is saved over a folder, and killed at every operation."""
    changes = ["text.max_length=8", "modalities=text", "pretrain.epochs=1", "finetune.epochs=1"]
    other = fit(made_shop(2), tiny_config.override(changes), quiet=True)
    other.embedder.text.network.config.layer_norm_eps = 1e-7  # a file of the same name that differs
    save(other, tmp_path / "other")
    other = load(tmp_path / "other", exact=True)
    old, new = tiny_model.recommend(ASKED, k=7), other.recommend(ASKED, k=7)
    outcomes: list[bool] = []
    for step in range(1, 100):
        folder = Path(shutil.copytree(saved, tmp_path / f"run-{step}"))
        killed = killed_at(step, other, folder, monkeypatch)
        found = load(folder, exact=True).recommend(ASKED, k=7)
        assert found in (old, new), f"killed at step {step}"
        outcomes.append(found == new)
        if step % 5 == 1 or outcomes[-1]:  # what a kill left is no obstacle, and does not stay
            save(other, folder)
            assert load(folder, exact=True).recommend(ASKED, k=7) == new
            assert contents(folder).keys() == contents(tmp_path / "other").keys()
        if not killed:
            break
    assert len(outcomes) > 6
    assert outcomes == sorted(outcomes)  # old, old, …, new, new
    assert (outcomes[0], outcomes[-1]) == (False, True)


def test_an_error_while_saving_leaves_the_old_model(
    folder: Path, tiny_model: Mufin, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folder)
    model.add_labels(Item("new", ["zebra"]))
    replace, seen = Path.replace, 0

    def full(self: Path, target: Any) -> Path:
        nonlocal seen
        seen += 1
        if seen == 2:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            save(model, folder)
    assert load(folder, exact=True).recommend(ASKED, k=9) == tiny_model.recommend(ASKED, k=9)
    assert not list(folder.glob(".mufin-saving-*"))


# -- damage -------------------------------------------------------------------------------------------------


def fails(folder: Path, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["network.safetensors", "labels.safetensors", "index.safetensors", "points.safetensors",
     "labels.parquet", "config.toml", "layout/text/config.json", "layout/vision/config.json",
     "layout/text/tokenizer.json"],
)  # fmt: skip
def test_every_part_that_is_cut_missing_or_changed(name: str, folder: Path) -> None:
    path = part(folder, name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    fails(folder, f"{path.name} has {len(whole) // 2} bytes, expected {len(whole)}")
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    fails(folder, f"{path.name} has changed since it was saved")
    path.write_bytes(b"")
    fails(folder, "has 0 bytes")
    path.unlink()
    fails(folder, f"{path.name} is missing")
    path.mkdir()
    fails(folder, f"{path.name} is missing")


@pytest.mark.parametrize("name", ["network.safetensors", "labels.safetensors", "index.safetensors"])
def test_safetensors_that_agree_with_the_manifest_and_are_bad_all_the_same(name: str, folder: Path) -> None:
    tensors = load_file(part(folder, name))
    key = next(k for k, t in tensors.items() if t.is_floating_point() and t.numel() > 1)

    def poison(path: Path) -> None:
        tensors[key].view(-1)[1] = torch.nan
        save_file(tensors, path)

    forge(folder, name, poison)
    fails(folder, f"{key}.*not finite")
    forge(folder, name, lambda path: path.write_bytes(path.read_bytes()[:50]))
    fails(folder, "cannot be read")
    forge(folder, name, lambda path: save_file({"other": torch.zeros(2)}, path))
    fails(folder, "settings|labels|has no")


def test_labels_that_do_not_count_the_same(folder: Path) -> None:
    table = pq.read_table(part(folder, "labels.parquet"))
    forge(folder, "labels.parquet", lambda path: pq.write_table(table.slice(0, 5), path))
    fails(folder, "5 labels, expected 7")
    forge(folder, "labels.parquet", lambda path: pq.write_table(pa.table({"x": range(7)}), path))
    fails(folder, "labels-.*cannot be read")
    forge(folder, "labels.parquet", lambda path: path.write_bytes(b"PAR1"))
    fails(folder, "labels-.*cannot be read")


@pytest.mark.parametrize("tensor", ["alpha", "centroids", "has_centroid", "frequency", "weights"])
def test_tensors_that_do_not_count_the_same(tensor: str, folder: Path) -> None:
    def cut(path: Path) -> None:
        tensors = load_file(path)
        save_file(tensors | {tensor: tensors[tensor][:3].clone()}, path)

    forge(folder, "labels.safetensors", cut)
    fails(folder, "copy the folder again")


def test_a_config_that_cannot_be_used(folder: Path) -> None:
    text = part(folder, "config.toml").read_text()
    for changed, said in (
        (text.replace("version = 1", "version = 99"), "version 99.*update mufin"),
        (text + "\nsurprise = 1\n", "unknown setting.*surprise"),
        ("[broken", "not TOML"),
        (text.replace("dim = 16", "dim = 12"), "does not match the settings"),
    ):
        assert changed != text
        forge(folder, "config.toml", lambda path, changed=changed: path.write_text(changed))
        fails(folder, said)


@pytest.mark.parametrize(
    "garbage",
    ["", "{", "null", "[]", "3", '"mufin"', "{}", '{"mufin": "1"}', '{"mufin": 1}',
     '{"mufin": 1, "parts": []}',
     '{"mufin": 1, "parts": {"config.toml": 1}}', '{"mufin": 1, "parts": 5}'],
)  # fmt: skip
def test_a_manifest_that_is_none(garbage: str, folder: Path) -> None:
    (folder / "mufin.json").write_text(garbage)
    fails(folder, "mufin.json")
    (folder / "mufin.json").write_bytes(b"\xff\xfe\x00")
    fails(folder, "mufin.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mixture", None),
        ("mixture", [0.5]),
        ("mixture", {}),
        ("mixture", {"weights": {"classifier": "high"}, "calibration": [1, 0, 0, 0]}),
        ("mixture", {"weights": {"classifier": float("nan")}, "calibration": [1, 0, 0, 0]}),
        ("mixture", {"weights": {"telepathy": 1.0}, "calibration": [1, 0, 0, 0]}),
        ("mixture", {"weights": {}, "calibration": 3}),
        ("mixture", {"weights": {}, "calibration": [[1], [2], [3], [4]]}),
        ("mixture", {"weights": {}, "calibration": [1.0, 0.0]}),
        ("mixture", {"weights": {}, "calibration": [1, 0, 0, 0], "seen": 3}),
        ("mixture", {"weights": {}, "calibration": [1, 0, 0, 0], "seen": {"telepathy": 1.0}}),
        ("own_items", "no"),
        ("parts", {}),
        ("mixture", {"weights": {"classifier": 10**400}, "calibration": [1, 0, 0, 0]}),
        ("labels", 10**400),
        ("library", 3),
    ],
)
def test_a_manifest_with_a_hole(key: str, value: object, folder: Path) -> None:
    resign(folder, lambda manifest: manifest.update({key: value}))
    fails(folder, "mufin.json")
    resign(folder, lambda manifest: manifest.pop(key))
    fails(folder, "mufin.json")


@pytest.mark.parametrize(
    "change",
    [
        7, {}, {"file": "a"}, None, {"file": "../config-0123456789.toml"}, {"file": "/etc/hostname"},
        {"file": "config-0123456789.toml/../../x"}, {"file": "labels-0123456789.parquet"}, {"size": 10**400},
        {"size": "5"}, {"hash": "0" * 31}, {"hash": None},
    ],
)  # fmt: skip
def test_a_manifest_with_a_strange_part(change: object, folder: Path) -> None:
    def strange(manifest: dict[str, Any]) -> None:
        old = manifest["parts"]["config.toml"]
        whole = isinstance(change, dict) and len(change) == 1 and change != {"file": "a"}
        manifest["parts"]["config.toml"] = {**old, **change} if whole else change  # type: ignore[dict-item]

    resign(folder, strange)
    fails(folder, "mufin.json")


def test_another_format(folder: Path) -> None:
    resign(folder, lambda manifest: manifest.update(mufin=99))
    fails(folder, "format 99.*update mufin")
    resign(folder, lambda manifest: manifest.update(mufin=2))
    fails(folder, "format 2 was written by an older mufin.*train again")


def test_foreign_folders(tmp_path: Path) -> None:
    fails(tmp_path / "nowhere", "does not exist")
    (tmp_path / "config.json").write_text("{}")
    fails(tmp_path, "is not a model folder")
    (tmp_path / "file").write_text("x")
    fails(tmp_path / "file", "does not exist|is not a model folder")


# -- large models -------------------------------------------------------------------------------------------

GROWTH = """
import sys
from mufin import load

def resident():
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssFile")))

load(sys.argv[1])  # what loading costs at all
before = resident()
model = load(sys.argv[2])
print(resident() - before, len(model.labels))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel must tell about memory")
def test_large_arrays_are_mapped_and_not_read(saved: Path, tiny_config: Config, tmp_path: Path) -> None:
    from mufin.encode.bag import PackedBags
    from mufin.encode.embedder import Embedder
    from mufin.model.labels import Labels
    from mufin.rank.ranker import Ranker

    n, dim = 50_000, 192  # more than what is small enough to be checked in full
    config = tiny_config.override([f"embed.dim={dim}", "retrieve.search=exact", "modalities=text"])
    vectors = torch.nn.functional.normalize(torch.randn(n, dim), dim=1)
    ids = pa.array([f"l{i}" for i in range(n)])
    texts = pa.ListArray.from_arrays(pa.array(range(n + 1), pa.int32()), ids)
    yes = torch.ones(n, dtype=torch.bool)
    labels = Labels(
        Items.from_table(pa.table({"id": ids, "texts": texts})), PackedBags(vectors, torch.arange(n + 1)),
        vectors, torch.ones(n), vectors, yes, torch.ones(n), yes, own_items=False,
    )  # fmt: skip
    signals = signals_of(config)
    mixture = Mixture.of_beta(signals, 0.7)
    model = Mufin(config, Embedder(config), Ranker(config), labels, signals, mixture)
    save(model, tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert size > 170 << 20
    command = [sys.executable, "-c", GROWTH, str(saved), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, count = map(int, done.stdout.split())
    assert count == n
    assert grown < size / 4, f"{grown >> 20} MB more in memory for {size >> 20} MB of files"


# -- pickle -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [True, False])
def test_a_model_is_pickled_as_its_folder(exact: bool, tiny_model: Mufin, tmp_path: Path) -> None:
    save(tiny_model, tmp_path / "run")
    model = load(tmp_path / "run", exact=exact)
    model.add_labels(Item("new", ["a new thing"]))
    model.remove_labels("q-red")
    wanted = model.recommend(ASKED, k=9)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        found = again.recommend(ASKED, k=9)
        for own, same in zip(wanted, found, strict=True):
            assert [(hit.label, hit.score, hit.evidence) for hit in same] == [
                (hit.label, hit.score, hit.evidence) for hit in own
            ]
            # The copy has no row of the removed label, so Σ eˢ may be rounded differently.
            assert [hit.probability for hit in same] == pytest.approx([hit.probability for hit in own])
        assert (again.exact, again.saved) == (exact, model.saved)
        again.remove_labels("new")  # is a model of its own
    assert model.recommend(ASKED, k=9) == wanted
    save(again, tmp_path / "run")  # the folder is still the one that it came from
    with pytest.raises(ModelError, match="changed by another program"):
        save(model, tmp_path / "run")


def test_a_shallow_copy_shares_its_parts(tiny_model: Mufin) -> None:
    assert vars(copy.copy(tiny_model)) == vars(tiny_model)
