"""The command line from end to end on a catalogue of a dozen things, with encoders of two tiny layers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mufin.cli import main
from mufin.data.catalogue import Catalogue
from mufin.data.item import Item

COLOURS = ["red", "green", "blue", "black", "white", "yellow"]
THINGS = ["desk", "lamp", "chair", "sofa"]
METRICS = {f"{name}@{k}" for name in ("P", "nDCG", "PSP") for k in (1, 3, 5)}
METRICS |= {"R@10", "R@100", "AUC", "MRR", "ms_per_point"}


class Shell:
    """Runs commands in this process and keeps what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> str:
        self.capsys.readouterr()
        found = main([str(argument) for argument in arguments])
        out, self.err = self.capsys.readouterr()
        assert found == code, self.err
        return out

    def json(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        out = self(*arguments, "--json", code=code)
        assert len(out.splitlines()) == 1
        value: dict[str, Any] = json.loads(out)
        return value

    def fails(self, *arguments: object) -> str:
        """The one sentence of a command that ends with 2."""
        out = self(*arguments, code=2)
        assert out == ""
        lines = self.err.splitlines()
        sentence = lines[-1]
        assert sentence.startswith("mufin: ")
        assert "Traceback" not in self.err
        assert "this is a bug" not in sentence
        assert len(lines) == 1, self.err
        return sentence


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def picture(colour: str, size: int = 24) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Settings that name two tiny encoders with random weights, and train in a second."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast, ViTConfig, ViTModel

    folder = tmp_path_factory.mktemp("encoders")
    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *COLOURS,
        *THINGS,
        *letters,
        *("##" + x for x in letters),
    ]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(words))
    layers = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **layers)).save_pretrained(folder / "text")
    tokenizer = BertTokenizerFast(vocab=str(vocabulary))
    tokenizer.save_pretrained(folder / "text")
    ViTModel(ViTConfig(image_size=32, patch_size=8, **layers)).save_pretrained(folder / "vision")
    return [
        f"text.model={folder / 'text'}", f"vision.model={folder / 'vision'}", "vision.size=32",
        "embed.dim=16", "pretrain.epochs=2", "pretrain.batch=8", "finetune.epochs=2", "finetune.batch=8",
        "run.validation=0.1",
    ]  # fmt: skip


def options(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 things of 6 colours and 4 kinds; related are those of the same colour."""
    names = [(colour, thing) for colour in COLOURS for thing in THINGS]
    items = [Item(f"{c}-{t}", [f"{c} {t}"], [picture(c)]) for c, t in names]
    related = {f"{c}-{t}": [f"{c}-{other}" for other in THINGS if other != t] for c, t in names}
    held_out = {f"{colour}-desk" for colour in COLOURS}
    folder = tmp_path_factory.mktemp("data") / "shop"
    catalogue = Catalogue.build(
        items,
        sets={"outfits": [[f"{c}-{t}" for t in THINGS] for c in COLOURS]},
        filter=[("red-desk", "red-lamp")],
        train={i: ls for i, ls in related.items() if i not in held_out},
        test={i: related[i] for i in held_out},
    )
    catalogue.write(folder, "jsonl")
    questions = [
        {"query": [f"{c}-desk", f"{c}-lamp"], "choices": [f"{c}-sofa", "white-chair"], "answer": 0}
        for c in ("red", "blue")
    ]
    (folder / "fitb.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shop: Path, encoders: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "shop"
    assert main(["train", str(shop), "-o", str(folder), "--quiet", "--seed", "3", *options(encoders)]) == 0
    return folder


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may spoil."""
    import shutil

    return Path(shutil.copytree(run, tmp_path / "run"))


# -- from a catalogue to a model -----------------------------------------------------------------------------


def test_check(shell: Shell, shop: Path):
    assert "Usable" in shell("check", shop)
    assert shell.json("check", shop)["items"] == 24
    assert shell.json("check", shop, "--no-pictures")["usable"]


def test_check_ends_with_1_when_the_catalogue_cannot_be_used(shell: Shell, tmp_path: Path):
    (tmp_path / "items.jsonl").write_text('{"id": "a", "texts": ["x"]}\nnonsense\n')
    assert "items.jsonl:2" in shell("check", tmp_path, code=1)
    assert shell.json("check", tmp_path, code=1)["usable"] is False


def test_config_is_read_again_as_it_was_written(shell: Shell, tmp_path: Path):
    text = shell("config", "--preset", "paper", "--set", "rank.beta=0.25")
    assert "beta = 0.25" in text
    file = tmp_path / "c.toml"
    assert str(file) in shell("config", "--preset", "paper", "--set", "rank.beta=0.25", "-o", file)
    assert file.read_text("utf-8") == text


def test_config_lists_presets_and_variants(shell: Shell):
    listed = shell("config", "--list").splitlines()
    presets, variants = listed[: listed.index("Variants")], listed[listed.index("Variants") :]
    assert "  paper  (the paper's values)" in presets
    assert "    text.model=offline" in presets
    assert variants[variants.index("  no-as") + 1] == "    embed.attention=feedforward"


def test_config_explains_settings(shell: Shell):
    out = shell("config", "--explain", "vision.size")
    assert "Side in pixels" in out
    assert "Values: integer, at least 16, at most 2048; or none" in out
    assert "Preset best: 192" in out
    assert "[rank] The ranker" in shell("config", "--explain", "rank")
    assert shell("config", "--explain").count("Default: ") > 80
    assert "known: rank.cross" in shell.fails("config", "--explain", "rank.bta")
    assert "add --explain" in shell.fails("config", "rank.beta")


def test_train_plan_shows_what_it_takes_and_trains_nothing(
    shell: Shell, shop: Path, encoders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = tmp_path / "run"
    arguments = ("train", shop, "-o", run, *options(encoders))
    out = shell(*arguments, "--plan").splitlines()
    assert out[0].split() == ["stage", "time", "memory", "disk"]
    assert [line.split()[0] for line in out[1:6]] == [
        "encoding", "pre-training", "shortlists", "fine-tuning", "assembling",
    ]  # fmt: skip
    assert re.fullmatch(r"About \d+ s, [\d.]+ [GM]B of memory, \d+ MB on disk", out[7])
    found = shell.json(*arguments, "--plan")
    assert found["seconds"] == pytest.approx(sum(stage["seconds"] for stage in found["stages"]))
    assert not run.exists()
    shell(*arguments)
    assert re.search(r"^About \d+ s, ", shell.err, re.MULTILINE)
    monkeypatch.setattr("mufin.runtime.usage.free_memory", lambda: 1_000_000)
    for switch in ("--quiet", "--json"):
        said = shell.fails("train", shop, "-o", tmp_path / "other", *options(encoders), switch)
        assert re.search(r"needs about .* of memory, and 1 MB are free; most goes to .*: lower", said)
    assert not (tmp_path / "other").exists()


def test_train_ends_with_its_metrics(shell: Shell, shop: Path, encoders: list[str], tmp_path: Path):
    arguments = ("train", shop, "-o", tmp_path / "run", *options([*encoders, "run.validation=0.5"]))
    found = shell.json(*arguments)
    assert {*found["metrics"]} == {"loss", "validation P@1"}
    assert "; validation P@1 " in shell(*arguments, "--overwrite")


def test_config_of_a_variant(shell: Shell):
    text = shell("config", "--preset", "paper", "--variant", "p-i-vec", "--set", "seed=5")
    for line in ("epochs = 0", "beta = 0.0", "seed = 5"):
        assert line in text.splitlines()


def test_train_says_what_to_do_next(shell: Shell, shop: Path, tmp_path: Path, encoders: list[str]):
    file = tmp_path / "tiny.toml"
    shell("config", *options(encoders), "-o", file)
    out = shell("train", shop, "-o", tmp_path / "run", "--config", file, "--modalities", "text", "--quiet")
    assert f"mufin evaluate {tmp_path / 'run'} {shop}" in out
    assert shell.json("info", tmp_path / "run")["modalities"] == "text"
    again = shell.json("train", shop, "-o", tmp_path / "run", "--config", file, "--seed", "4", "--overwrite")
    assert again["labels"] == 24
    assert shell.json("info", tmp_path / "run")["modalities"] == "both"


def test_train_a_variant(shell: Shell, shop: Path, tmp_path: Path, encoders: list[str]):
    run = tmp_path / "run"
    shell("train", shop, "-o", run, "--variant", "no-as", "--quiet", *options(encoders))
    assert "embed.attention=feedforward" in shell.json("info", run)["settings"]


def test_train_on_sets_and_answer_questions(shell: Shell, shop: Path, tmp_path: Path, encoders: list[str]):
    outfits = tmp_path / "run"
    shell("train", shop, "-o", outfits, "--sets", "outfits", "--quiet", *options(encoders))
    by_name = shell.json("evaluate", outfits, shop, "--fitb", "fitb")
    assert by_name["questions"] == 2
    assert 0 <= by_name["accuracy"] <= 100
    for source in ("fitb.jsonl", shop / "fitb.jsonl"):
        assert shell.json("evaluate", outfits, shop, "--fitb", source) == by_name
    assert "accuracy" in shell("evaluate", outfits, shop, "--fitb", "fitb")
    assert "nothing" in shell.fails("evaluate", outfits, shop, "--fitb", "nothing")


def test_demo(shell: Shell, shop: Path, tmp_path: Path, encoders: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mufin.demo.folder", lambda: shop)
    out = shell("demo", "-o", tmp_path / "demo", "--quiet", *options(encoders))
    for expected in ("Popularity", "TF-IDF", "MUFIN", "P@1", "→", "mufin recommend"):
        assert expected in out
    scores = shell.json("demo", "-o", tmp_path / "demo", *options(encoders))["scores"]
    assert 0 <= scores["MUFIN"]["P@1"] <= 100


# -- asking a model ------------------------------------------------------------------------------------------


def test_evaluate(shell: Shell, run: Path, shop: Path):
    values = shell.json("evaluate", run, shop)
    assert set(values) >= METRICS
    assert values["ms_per_point"] > 0
    assert 0 < values["R@100"] <= 100
    assert 0 <= values["AUC"] <= 1
    assert 0 <= values["MRR"] <= 1
    assert "nDCG@5" in shell("evaluate", run, shop, "--split", "train")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_predict_the_items_of_a_folder(shell: Shell, run: Path, shop: Path, tmp_path: Path, suffix: str):
    output = tmp_path / "new" / f"out.{suffix}"
    done = shell.json("predict", run, shop, "-o", output, "-k", 3)
    assert done["items"] == 24
    rows = read_rows(output)
    assert [row["id"] for row in rows[:2]] == ["red-desk", "red-lamp"]
    for row in rows:
        assert len(row["labels"]) == len(row["scores"]) == 3
        assert row["scores"] == sorted(row["scores"], reverse=True)
        assert row["id"] not in row["labels"]
    assert "red-lamp" not in rows[0]["labels"]  # a filter pair
    assert len(list(output.parent.iterdir())) == 1


def test_predict_a_split_and_all_labels(shell: Shell, run: Path, shop: Path, tmp_path: Path):
    output = tmp_path / "out.jsonl"
    assert "6 items" in shell("predict", run, shop, "--split", "test", "-o", output, "-k", 1000, "--quiet")
    assert {len(row["labels"]) for row in read_rows(output)} == {22, 23}  # without itself and the filter pair


def test_predict_a_file_as_recommend_does(
    shell: Shell, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mufin.model.blocks.ITEMS_PER_BLOCK", 2)
    texts = ["red stool", "blue desk", "", "black lamp", "green"]
    items, output = tmp_path / "items.jsonl", tmp_path / "out.jsonl"
    items.write_text("".join(json.dumps({"id": str(i), "texts": [t]}) + "\n" for i, t in enumerate(texts)))
    shell("predict", run, items, "-o", output, "-k", 4, "--quiet")
    assert "1 item" in shell.err
    rows = read_rows(output)
    assert rows[2] == {"id": "2", "labels": [], "scores": [], "probabilities": []}
    for i in (0, 3, 4):
        hits = shell.json("recommend", run, texts[i], "-k", 4)["hits"]
        assert rows[i]["labels"] == [hit["label"] for hit in hits]
        assert rows[i]["scores"] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_recommend(shell: Shell, run: Path, tmp_path: Path):
    file = tmp_path / "red.png"
    file.write_bytes(picture("red"))
    found = shell.json("recommend", run, "red desk", "made of oak", "--image", file, "-k", 2)
    hit = found["hits"][0]
    assert set(hit) == {"label", "text", "score", "probability", "parts", "evidence"}
    assert sum(hit["parts"].values()) == pytest.approx(hit["score"], abs=1e-5)
    assert {"similarity", "classifier"} <= set(hit["evidence"])
    scores = [one["score"] for one in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert 0 <= hit["probability"] <= 1
    header, *lines = shell("recommend", run, "--image", file, "-k", 2).splitlines()
    assert header.split() == ["label", "text", "probability", "score", *hit["parts"]]
    assert len(lines) == 2
    shell("recommend", run, file)
    assert f"to read the image, use --image {file}" in shell.err


def test_an_unlikely_first_label_is_called_not_good(shell: Shell, run: Path, monkeypatch: pytest.MonkeyPatch):
    [hit] = shell.json("recommend", run, "red desk", "-k", 1)["hits"]
    for good, told in ((hit["probability"], False), (hit["probability"] + 1e-6, True)):
        monkeypatch.setattr("mufin.commands.recommend.GOOD", good)
        shell("recommend", run, "red desk", "-k", 1)
        assert ("no good label: even the first one is" in shell.err) == told


def test_recommend_with_filters(shell: Shell, run: Path):
    all_of_them = [hit["label"] for hit in shell.json("recommend", run, "red", "-k", 1000)["hits"]]
    assert len(all_of_them) == 24
    few = shell.json("recommend", run, "red", "--allow", "red-sofa", "--allow", "blue-lamp")["hits"]
    assert {hit["label"] for hit in few} == {"red-sofa", "blue-lamp"}
    others = shell.json("recommend", run, "red", "--deny", all_of_them[0], "-k", 23)["hits"]
    assert [hit["label"] for hit in others] == all_of_them[1:]


def test_embed(shell: Shell, run: Path, shop: Path, tmp_path: Path):
    shell("embed", run, shop, "-o", tmp_path / "x.npy", "--quiet")
    shell("embed", run, shop, "-o", tmp_path / "x.parquet", "--quiet")
    vectors = np.load(tmp_path / "x.npy")
    assert vectors.shape == (24, 16)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column("id")[0].as_py() == "red-desk"
    assert np.array_equal(np.stack(table.column("vector").to_numpy()), vectors)


def test_files_without_items(shell: Shell, run: Path, tmp_path: Path):
    (tmp_path / "none.jsonl").touch()
    for command, name in (
        ("embed", "x.npy"),
        ("embed", "x.parquet"),
        ("predict", "y.jsonl"),
        ("predict", "y.parquet"),
    ):
        assert shell.json(command, run, tmp_path / "none.jsonl", "-o", tmp_path / name)["items"] == 0
        assert (tmp_path / name).is_file()


def test_predict_a_table(shell: Shell, run: Path, tmp_path: Path):
    (tmp_path / "red.png").write_bytes(picture("red"))
    rows = [
        "sku;name;photo", "a;red desk;red.png", ";blue desk;", "c;black lamp;gone.png", "d;green;https://x/y.png",
        'e;"two\nlines";', "f;", "g;white sofa;red.png", "h;;",
    ]  # fmt: skip
    (tmp_path / "new.csv").write_text("\n".join(rows))
    columns = ["--id", "sku", "--text", "name", "--image", "photo"]
    new, out = tmp_path / "new.csv", tmp_path / "p.csv"
    shell("predict", run, new, *columns, "-o", out, "-k", 2, "--separator", "+")
    assert "4 bad rows" in shell.err
    assert f"{new}, row 7 (line 8): 2 cells, expected 3; skipped" in shell.err
    assert "1 item has no text or image" in shell.err
    with (tmp_path / "p.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["id"] for line in lines] == ["a", "row-2", "c", "d", "e", "f", "g", "h"]
    assert [bool(line["error"]) for line in lines] == [False, True, True, True, False, True, False, False]
    assert [len(line["labels"].split("+")) for line in lines] == [2, 1, 1, 1, 2, 1, 2, 1]
    assert all(0 <= float(p) <= 1 for p in lines[0]["probabilities"].split("+"))
    [hit, _] = shell.json("recommend", run, "red desk", "--image", tmp_path / "red.png", "-k", 2)["hits"]
    assert lines[0]["labels"].split("+")[0] == hit["label"]
    assert float(lines[0]["probabilities"].split("+")[0]) == pytest.approx(hit["probability"], abs=1e-5)
    with new.open(newline="") as file:
        table = pa.Table.from_pylist(
            [row for row in csv.DictReader(file, delimiter=";") if row["sku"] != "f"]
        )
    pq.write_table(table, tmp_path / "new.parquet")
    for given, made in (("new.csv", "p.jsonl"), ("new.parquet", "p.parquet"), ("new.csv", "p.tsv")):
        shell("predict", run, tmp_path / given, *columns, "-o", tmp_path / made, "-k", 2, "-q")
        assert (tmp_path / made).is_file()
    found = [row["labels"] for row in read_rows(tmp_path / "p.jsonl") if row["id"] != "f"]
    assert [row["labels"] for row in read_rows(tmp_path / "p.parquet")] == found
    assert (tmp_path / "p.tsv").read_text().splitlines()[0].split("\t")[3] == "probabilities"
    for options, expected in (
        (["--text", "name", "--strict", "--id", "sku"], "row 3: column 'sku' is empty"),
        (["--text", "title"], "no column 'title'; columns: sku, name, photo"),
        ([], "no column title or texts or images; name yours, such as --text name (columns: sku, name,"),
    ):
        assert expected in shell.fails("predict", run, new, *options, "-q", "-o", tmp_path / "x.csv")


def test_predict_rows_in_another_encoding(shell: Shell, run: Path, tmp_path: Path):
    new = tmp_path / "new.csv"
    new.write_bytes(b"sku,name\nd\xe9sk,red desk\nb,t\xe9l\xe9\nc,blue lamp\n")
    lines = shell("predict", run, new, "--id", "sku", "--text", "name", "-o", "-", "-k", 1, "-q").splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", "row-1", "b", "c"]
    assert ["is not UTF-8" in line for line in lines] == [False, True, True, False]


def test_only_probable_labels(shell: Shell, run: Path, shop: Path):
    for least in (0.0, 0.3, 1.0):
        out = shell("predict", run, shop, "--min-probability", least, "-q")
        found = [p for line in out.splitlines() for p in json.loads(line)["probabilities"]]
        assert all(p >= least for p in found)
        assert len(out.splitlines()) == 24


def test_predict_as_a_pipe_answers_every_line_at_once(run: Path):
    command = [sys.executable, "-m", "mufin", "predict", str(run), "-", "-k", "1"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as pipe:
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        for text in ("red desk", "blue lamp", "", "black sofa"):
            pipe.stdin.write(json.dumps({"id": text, "title": text}) + "\n")
            answer = json.loads(pipe.stdout.readline())  # while the writer waits
            assert (answer["id"], len(answer["labels"])) == (text or "row-3", bool(text))
        pipe.stdin.close()
        assert pipe.stdout.read() == ""
    assert pipe.returncode == 0
    line = b"title,price\nred desk,1\nblue lamp,2\n"
    done = subprocess.run([*command, "--text", "title"], input=line, capture_output=True, check=True)
    header, *lines = done.stdout.decode().splitlines()
    assert header == "id,labels,scores,probabilities,error"
    assert [line.split(",")[0] for line in lines] == ["row-1", "row-2"]


def test_nothing_is_overwritten_unasked(shell: Shell, run: Path, shop: Path, tmp_path: Path):
    (tmp_path / "report").mkdir()
    for command in (
        ["predict", run, shop, "-q", "-o", tmp_path / "p.jsonl"],
        ["embed", run, shop, "-q", "-o", tmp_path / "x.npy"],
        ["config", "-o", tmp_path / "c.toml"],
        ["evaluate", run, shop, "-q", "--report", tmp_path / "r.html"],
    ):
        output = Path(str(command[-1]))
        output.write_text("mine")
        assert f"{output} exists; choose another name, or replace it with --overwrite" in shell.fails(
            *command
        )
        assert output.read_text() == "mine"
        if command[0] != "evaluate":
            shell(*command, "--overwrite")
            assert output.read_bytes() != b"mine"
    report = tmp_path / "report.html"
    assert "the folder for the figures, exists" in shell.fails("evaluate", run, shop, "--report", report)


# -- looking after a model -----------------------------------------------------------------------------------


def test_info(shell: Shell, run: Path):
    facts = shell.json("info", run)
    assert (facts["labels"], facts["dim"], facts["preset"]) == (24, 16, "best")
    assert "seed=3" in facts["settings"]
    assert facts["alpha"]["min"] <= facts["alpha"]["median"] <= facts["alpha"]["max"]
    out = shell("info", run)
    assert "24" in out
    assert "embed.dim=16" in out


def test_labels_come_and_go(shell: Shell, own_run: Path, tmp_path: Path):
    file = tmp_path / "new.jsonl"
    file.write_text('{"id": "red-stool", "title": "red stool", "images": ["red.png"]}\n')
    (tmp_path / "red.png").write_bytes(picture("red"))
    assert shell.json("add-labels", own_run, file) == {"added": 1, "labels": 25}
    hits = shell.json("recommend", own_run, "red stool", "-k", 25)["hits"]
    assert "red-stool" in {hit["label"] for hit in hits}
    assert "taken" in shell.fails("add-labels", own_run, file)
    assert shell.json("remove-labels", own_run, "red-stool", "red-desk") == {"removed": 2, "labels": 23}
    hits = shell.json("recommend", own_run, "red stool", "-k", 25)["hits"]
    assert not {"red-stool", "red-desk"} & {hit["label"] for hit in hits}
    assert "'red-desk'" in shell.fails("remove-labels", own_run, "red-desk")


# -- what goes wrong -----------------------------------------------------------------------------------------


def test_a_missing_folder(shell: Shell, run: Path, tmp_path: Path):
    nowhere, out = tmp_path / "nowhere", tmp_path / "out"
    for arguments in (
        ["check", nowhere], ["train", nowhere, "-o", out], ["evaluate", run, nowhere], ["info", nowhere],
        ["recommend", nowhere, "desk"], ["predict", run, nowhere, "-o", tmp_path / "x.jsonl"],
        ["add-labels", run, nowhere / "x.jsonl"],
    ):  # fmt: skip
        assert "nowhere" in shell.fails(*arguments)
    assert not out.exists()


def test_settings_that_cannot_be_used(shell: Shell, shop: Path, tmp_path: Path):
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = = 3")
    newer = tmp_path / "newer.toml"
    newer.write_text("version = 99")
    train = ["train", shop, "-o", tmp_path / "run"]
    for arguments, expected in (
        (["--config", broken], "not TOML"),
        (["--config", newer], "update mufin"),
        (["--config", tmp_path / "none.toml"], "none.toml"),
        (["--preset", "papr"], "choose one of: paper"),
        (["--variant", "no-a"], "choose one of: random-positives"),
        (["--variant", "no-ac"], "changes nothing"),
        (["--set", "rank.betta=1"], "unknown setting 'rank.betta' (did you mean 'beta'?); known here: "),
        (["--set", "rank.beta=much"], "rank.beta"),
        (["--set", "nonsense"], "section.key=value"),
        (["--modalities", "sound"], "modalities"),
        (["--preset", "paper", "--config", broken], "not both"),
        (["--device", "abacus"], "abacus"),
        (["--split", "dev"], "'dev'"),
        (["--sets", "suits"], "'suits'"),
        (["--seed", "many"], "--seed"),
    ):
        assert expected in shell.fails(*train, *arguments)
    assert "choose one of: paper" in shell.fails("config", "--preset", "papr")


def test_an_encoder_that_is_not_there(shell: Shell, shop: Path, tmp_path: Path):
    settings = ["--set", f"text.model={tmp_path / 'none'}"]
    assert "cannot be loaded" in shell.fails("train", shop, "-o", tmp_path / "run", "--quiet", *settings)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_model_is_not_overwritten(shell: Shell, shop: Path, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("dear")
    assert "thesis.tex" in shell.fails("train", shop, "-o", tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "dear"


def test_a_damaged_model(shell: Shell, own_run: Path, shop: Path):
    assert "All parts are intact" in shell("check", own_run)
    found = shell.json("check", own_run)
    assert found["usable"]
    assert "network.safetensors" in [part["name"] for part in found["parts"]]
    weights = next(own_run.glob("labels-*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    assert f"{weights.name} has" in shell("check", own_run, code=1)
    found = shell.json("check", own_run, code=1)
    assert [part["file"] for part in found["parts"] if part["problem"]] == [weights.name]
    for arguments in (["recommend", own_run, "desk"], ["evaluate", own_run, shop], ["info", own_run]):
        assert weights.name in shell.fails(*arguments)
    (own_run / "mufin.json").write_text("{")
    assert "mufin.json" in shell.fails("info", own_run)
    assert "mufin.json" in shell("check", own_run, code=1)
    assert "not a model folder" in shell.fails("info", shop)


def test_questions_that_cannot_mean_anything(shell: Shell, run: Path, shop: Path, tmp_path: Path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    out, file = tmp_path / "x.jsonl", tmp_path / "file.jsonl"
    file.touch()
    for arguments, expected in (
        (["recommend", run], "--image"),
        (["recommend", run, "  "], "no text and no image"),
        (["recommend", run, "desk", "--image", bad], "bad.png"),
        (["recommend", run, "desk", "--image", tmp_path / "none.png"], "none.png"),
        (["recommend", run, "desk", "--allow", "pink-desk"], "'pink-desk'"),
        (["recommend", run, "desk", "--deny", "pink-desk"], "'pink-desk'"),
        (["recommend", run, "desk", "-k", 0], "k is 0"),
        (["evaluate", run, shop, "--split", "dev"], "'dev'"),
        (["predict", run, shop, "-o", out, "-k", 0], "k is 0"),
        (["predict", run, shop, "-o", out, "--split", "dev"], "'dev'"),
        (["predict", run, shop, "-o", tmp_path / "x.txt"], ".jsonl or .parquet"),
        (["predict", run, shop / "items.jsonl", "-o", shop / "items.jsonl"], "the input file"),
        (["predict", run, bad, "-o", out], "bad.png"),
        (["predict", run, shop, "-o", file], "replace it with --overwrite"),
        (["predict", run, shop, "--json"], "add -o FILE"),
        (["predict", run, shop, "--min-probability", 2], "expected 0 to 1"),
        (["predict", run, shop, "-o", out, "--text", "a", "--images-dir", out], "no such folder"),
        (["embed", run, shop, "-o", tmp_path], "ending in"),
        (["remove-labels", run, "pink-desk"], "'pink-desk'"),
    ):
        assert expected in shell.fails(*arguments)
    assert not out.exists()


def test_an_output_that_cannot_be_written(shell: Shell, run: Path, shop: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    assert "file" in shell.fails("predict", run, shop, "-o", tmp_path / "file" / "x.jsonl")
    assert "file" in shell.fails("train", shop, "-o", tmp_path / "file")


def test_wrong_use_is_one_line(shell: Shell):
    assert "mufin train --help" in shell.fails("train")
    assert "'train'" in shell.fails("trian")
    assert "--colour" in shell.fails("config", "--colour", "red")


@pytest.mark.parametrize(
    ("error", "expected", "code"),
    [
        (OSError(28, "No space left on device", "runs/x"), "runs/x: No space left on device", 2),
        (MemoryError(), "memory", 2),
        (ZeroDivisionError("by zero"), "MUFIN_DEBUG=1", 2),
        (KeyboardInterrupt(), "stopped", 130),
    ],
)
def test_what_nobody_foresaw(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, error: BaseException, expected: str, code: int
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("mufin.config.Config.preset", fail)
    shell("config", code=code)
    assert expected in shell.err
    assert len(shell.err.splitlines()) == 1
    if code == 2:
        monkeypatch.setenv("MUFIN_DEBUG", "1")
        with pytest.raises(type(error)):
            main(["config"])


# -- as a program --------------------------------------------------------------------------------------------


def mufin(*arguments: str, code: str = "-m mufin") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *code.split(" ", 1), *arguments]
    source = str(Path(__file__).resolve().parent.parent / "src")
    environment = os.environ | {"PYTHONPATH": source}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_help_does_not_wait_for_torch():
    heavy = "torch transformers pyarrow scipy numpy"
    script = (
        "import sys; from mufin.cli import main; main();"
        f"print(*set('{heavy}'.split()) & set(sys.modules), file=sys.stderr)"
    )
    for arguments in ([], ["--help"], ["train", "--help"], ["--version"]):
        done = mufin(*arguments, code=f"-c {script}")
        assert done.returncode == 0
        assert done.stdout
        assert done.stderr.strip() == ""


def test_as_a_program():
    done = mufin("info", "nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mufin: nowhere does not exist")
    assert len(done.stderr.splitlines()) == 1


def read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return rows
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
