"""Exported models: ONNX graphs with the vectors of the model, and a search without torch and mufin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from made import picture
from mufin import Catalogue, Config, Item, Mufin, fit, load, save
from mufin.cli import main
from mufin.errors import UsageError
from mufin.model.export import export

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "examples" / "onnx_search.py"
# An import of these fails in the subprocess.
BLOCKED = "import sys; sys.modules.update(dict.fromkeys(['torch', 'transformers', 'mufin']))\n"
SEARCH = BLOCKED + (
    "import json, runpy\n"
    "folder, *asked = json.loads(sys.argv[1])\n"
    "searcher = runpy.run_path(sys.argv[2])['Searcher'](folder)\n"
    "print(json.dumps([[searcher.embed(*each).tolist(), searcher.search(*each)] for each in asked]))\n"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("images")
    paths = []
    for name, image in (
        ("circle.png", picture("red", "circle", 77)),
        ("bar.jpg", picture("blue", "bar", 50).crop((0, 0, 50, 30))),
        ("glass.png", picture("green", "square").convert("RGBA")),
    ):
        image.save(folder / name)
        paths.append(str(folder / name))
    return paths


def asked(files: list[str]) -> list[tuple[list[str], list[str]]]:
    """Texts and images of items: a text, an image, both, and several of each, of different lengths."""
    long = "a very long title with many words about a red circle " * 3
    return [
        (["red circle"], []),
        ([], [files[0]]),
        (["Blue bar"], [files[1]]),
        (["x", long, "GREEN square 7"], files),
    ]


def check(model: Mufin, folder: Path, files: list[str]) -> None:
    """The script in a process without torch gives the vectors and labels of the model."""
    queries = asked(files)
    said = subprocess.run(
        [sys.executable, "-c", SEARCH, json.dumps([str(folder), *queries]), str(SCRIPT)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    items = [Item("", *query) for query in queries]
    vectors, near = model.embed(items).vector(), model.shortlist(items, 10)
    ids = model.labels.items.ids.to_pylist()
    for row, (vector, hits) in enumerate(json.loads(said)):
        assert np.abs(vectors[row].numpy() - vector).max() < 1e-4
        expected = [ids[label] for label in near.labels[row].tolist() if label >= 0]
        similarity = near.similarity[row][: len(expected)].tolist()
        assert [hit["similarity"] for hit in hits] == pytest.approx(similarity, abs=1e-4)
        if min(np.abs(np.diff(similarity)), default=1) > 1e-4:  # else equal labels may swap
            assert [hit["id"] for hit in hits] == expected


def test_a_search_without_torch_finds_the_same(
    shop: Catalogue, tiny_config: Config, files: list[str], tmp_path: Path
) -> None:
    """With every layer of the text encoder trained, and the paper's pooling."""
    config = tiny_config.override(["text.train_layers=all", "embed.projection=maxpool", "embed.dim=18"])
    model = fit(shop, config, tmp_path / "run", quiet=True)
    model = load(tmp_path / "run", exact=True)
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 0
    check(model, tmp_path / "out", files)
    found = {path.name for path in (tmp_path / "out").iterdir()}
    page = (ROOT / "docs/how-to/onnx.md").read_text("utf-8")
    assert found == {
        line.split("`")[1] for line in page.splitlines() if line.startswith("| `")
    }  # the page lists them


def test_the_packaged_encoders_are_exported(shop: Catalogue, files: list[str], tmp_path: Path) -> None:
    """With features of every stage."""
    tiny = ["pretrain.epochs=1", "finetune.epochs=1", "run.batches=1", "vision.size=64", "memory.loss=0"]
    config = Config.preset("best").override([*tiny, "text.pretrained_similarity=false"])
    fit(shop, config, tmp_path / "run", quiet=True)
    model = load(tmp_path / "run", exact=True)
    export(model, tmp_path / "out", "onnx")
    assert model.embedder.stages is not None
    check(model, tmp_path / "out", files)


def test_entries_for_other_search_engines(tiny_model: Mufin, tmp_path: Path) -> None:
    save(tiny_model, tmp_path / "run")
    model = load(tmp_path / "run")
    model.remove_labels(["q-red"])
    model.add_labels([Item("new", ["new thing"])])
    export(model, tmp_path / "npy", "npy")
    export(model, tmp_path / "parquet", "parquet")
    vectors = np.load(tmp_path / "npy/entries.npy")
    owners = np.load(tmp_path / "npy/owners.npy")
    labels = [json.loads(line) for line in (tmp_path / "npy/labels.jsonl").read_text().splitlines()]
    table = pq.read_table(tmp_path / "parquet/entries.parquet").to_pydict()
    assert [labels[owner]["id"] for owner in owners] == table["label"]
    assert [labels[owner]["text"] for owner in owners] == table["text"]
    assert np.array_equal(vectors, np.array(table["vector"], np.float32))
    assert {"new", "q-blue"} < {*table["label"]}
    assert "q-red" not in table["label"]
    query = model.embed(Item("", ["red circle"])).vector()[0].numpy()
    best = {label["id"]: (vectors[owners == n] @ query).max() for n, label in enumerate(labels)}
    near = model.shortlist(Item("", ["red circle"]), 3)
    for label, similarity in zip(near.labels[0].tolist(), near.similarity[0].tolist(), strict=True):
        assert best[model.labels.items.ids[label].as_py()] == pytest.approx(similarity, abs=1e-5)


def test_what_cannot_be_exported_is_said(
    tiny_model: Mufin, shop: Catalogue, tiny_config: Config, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("keep")
    with pytest.raises(UsageError, match="exists already"):
        export(tiny_model, tmp_path / "mine", "npy")
    assert (tmp_path / "mine/file").read_text() == "keep"
    early = tiny_config.override(
        ["embed.fusion=early", "text.train_layers=all", "embed.attention=none", "pretrain.epochs=0"]
    )
    model = fit(shop, early.override(["finetune.epochs=1", "run.batches=1"]), quiet=True)
    with pytest.raises(UsageError, match="early"):
        export(model, tmp_path / "out", "onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
