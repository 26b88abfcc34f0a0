"""Predicting, embedding and encoding by Ray: the answers of one process, whatever dies or is stopped."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from made import COLOURS, SHAPES
from mufin import Catalogue, Config, MufinError, fit
from mufin.cli import main
from mufin.distributed import cluster, predict
from mufin.distributed.parts import OutputFolder, Part
from mufin.errors import UsageError
from test_documents import ROOT, Shell, run_page

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),
]
ROWS = 2500  # three parts


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """One cluster for all tests, which the commands find."""
    with cluster.connected(cpus=2):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shop: Catalogue, tiny_config: Config) -> Path:
    """A folder with a catalogue, a model, items in one file and in two, and their predictions."""
    folder = tmp_path_factory.mktemp("ray")
    shop.write(folder / "shop")
    fit(shop, tiny_config.override(["memory.neighbours=5"]), folder / "runs" / "shop", quiet=True)
    titles = [f"{c} {s} {i}" if i % 7 else "" for i in range(210) for c in COLOURS for s in SHAPES][:ROWS]
    table = pa.table({"id": [f"i{row}" for row in range(ROWS)], "title": titles})
    pq.write_table(table, folder / "new.parquet", row_group_size=700)
    (folder / "new").mkdir()
    pq.write_table(table[:300], folder / "new" / "a.parquet")
    pq.write_table(table[300:], folder / "new" / "b.parquet")
    run(folder, "predict", "runs/shop", "new.parquet", "-o", "plain.parquet", "-k", "3")
    return folder


def run(folder: Path, *arguments: str, code: int = 0) -> None:
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert main(arguments) == code
    finally:
        os.chdir(before)


def read(path: Path) -> pa.Table:
    return pyarrow.dataset.dataset(path).to_table().combine_chunks()


def noting(notes: Path, killed_at: str = "") -> type[predict.Worker]:
    """Return a class of workers that note what they do; the first to get to a part is killed.

    Ray sends a class defined in a function by value: its processes cannot import this file.
    """
    notes.touch()

    class Worker(predict.Worker):
        def __init__(self, job: predict.Job) -> None:
            super().__init__(job)
            self._note("load")

        def __call__(self, part: Part) -> Any:
            again = part.name in notes.read_text().split()
            self._note(part.name)
            if part.name == killed_at and not again:
                (self.job.output / ".mufin-0123456789abcdef.tmp").write_text("half a part")
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(part)

        def _note(self, text: str) -> None:
            with notes.open("a") as file:
                file.write(text + "\n")

    return Worker


def test_a_killed_worker_loses_and_repeats_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = tmp_path / "notes"
    second = "part-00000001.parquet"
    monkeypatch.setattr(predict, "Worker", noting(notes, killed_at=second))
    run(folder, "predict", "runs/shop", "new", "-o", str(tmp_path / "out"), "-k", "3", "--ray", "--json")
    said = capfd.readouterr()
    facts = json.loads(said.out)
    assert (facts["items"], facts["bad_rows"]) == (ROWS, [])
    assert facts["empty"] > 300
    assert said.err == ""
    assert [one.message for one in caplog.records] == ["a worker died; what it was doing was done again"]
    assert read(tmp_path / "out").equals(read(folder / "plain.parquet"))
    lines = notes.read_text().split()
    names = sorted(path.name for path in (tmp_path / "out").glob("part-*"))
    assert len(names) == 4  # a.parquet has one, b.parquet three
    assert sorted(line for line in lines if line != "load") == sorted([*names, second])
    assert lines.count("load") <= 3  # one per worker, and the one started again
    hidden = {path.name for path in (tmp_path / "out").iterdir()} - {*names}
    assert hidden == {"_mufin.json", "_done.jsonl", ".mufin.lock"}


def test_a_stopped_command_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["predict", "runs/shop", "new.parquet", "-o", str(out), "-k", "3", "--ray"]
    note, finished = OutputFolder.note, []

    def interrupted(self: OutputFolder, part: Part, *given: Any) -> None:
        note(self, part, *given)
        finished.append(part.name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, "note", interrupted)
        run(folder, *arguments, code=130)
    assert "Run the same command again" in capsys.readouterr().err
    before = (out / finished[0]).stat().st_mtime_ns
    assert not [*out.glob("*.tmp"), *out.glob(".*.tmp")]

    run(folder, "predict", "runs/shop", "new", *arguments[3:], code=2)
    assert "holds other results: input.new.parquet was" in capsys.readouterr().err
    run(folder, *arguments, "-k", "4", code=2)
    assert "labels.k was 3 and is 4; choose another folder, or replace them with --overwrite" in (
        capsys.readouterr().err
    )

    monkeypatch.setattr(predict, "Worker", noting(tmp_path / "notes"))
    run(folder, *arguments)
    again = {line for line in (tmp_path / "notes").read_text().split() if line != "load"}
    assert finished[0] not in again
    assert (out / finished[0]).stat().st_mtime_ns == before
    assert read(out).equals(read(folder / "plain.parquet"))
    (tmp_path / "notes").unlink()
    run(folder, *arguments)  # nothing is left to do
    late = tmp_path / "notes"  # of a worker of the last run that was still starting
    assert not late.exists() or set(late.read_text().split()) == {"load"}
    assert f"{ROWS:,} items" in capsys.readouterr().out


def test_the_page(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tiny_config: Config,
    tmp_path: Path,
) -> None:
    """Every command of the section on Ray; embeddings and the cache are those of one process."""
    monkeypatch.setattr("mufin.config.Config.preset", lambda name: tiny_config)  # fast encoders
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "by-ray"))
    monkeypatch.chdir(folder)
    page = (ROOT / "docs" / "distributed.md").read_text("utf-8")
    section = page[page.index("## Predict, embed and encode with Ray") :].split("\n## ")[0]
    (tmp_path / "ray.md").write_text(section, "utf-8")
    assert run_page(tmp_path / "ray.md", folder, Shell(folder, capsys)) == ["sh"]
    assert read(folder / "predictions").equals(read(folder / "plain.parquet"))
    run(folder, "embed", "runs/shop", "new.parquet", "-o", "plain-vectors.parquet")
    assert read(folder / "vectors").equals(read(folder / "plain-vectors.parquet"))

    by_ray = cached(tmp_path / "by-ray")
    monkeypatch.setenv("MUFIN_CACHE", str(tmp_path / "by-one"))
    run(folder, "train", "shop", "-o", str(tmp_path / "one"))
    by_one = cached(tmp_path / "by-one")
    assert by_ray.keys() == by_one.keys()
    for key, value in by_ray.items():
        np.testing.assert_allclose(value, by_one[key], atol=1e-5)


def cached(cache: Path) -> dict[tuple[str, int], Any]:
    """Return all cached rows, by encoder and key."""
    from mufin.encode.shard import FileShard

    found = {}
    for path in cache.glob("features-*/*/*.features"):
        shard = FileShard.open(path, path.parent.name)
        dtype, shape = shard.row_type
        flat = np.empty((int(shard.lengths.sum()), *shape), dtype)
        starts = np.cumsum(shard.lengths) - shard.lengths
        shard.fill(np.arange(len(shard.keys)), flat, starts)
        rows = np.split(flat, starts[1:])
        found |= {(path.parent.name, int(key)): row for key, row in zip(shard.keys, rows, strict=True)}
    return found


def test_a_task_that_kills_every_worker_ends_the_command(tmp_path: Path) -> None:
    """Without Ray: what the fifth process finds, after the fourth has died."""

    def worker() -> Callable[[str], str]:
        return {"a": "done"}.__getitem__

    def result(task: str) -> Any:
        actor = cluster._Actor(worker, (), tmp_path, cpus=1)
        return cluster._result(actor({"number": 7, "task": pickle.dumps(task)})["result"])

    for deaths in range(4):
        assert result("a") == "done"
        (tmp_path / f"7-{deaths}").touch()
    with pytest.raises(MufinError, match="4 workers died over one task"):
        result("a")
    (tmp_path / "7-0").unlink()
    with pytest.raises(KeyError, match="b"):
        result("b")
    shutil.rmtree(tmp_path)
    with pytest.raises(UsageError, match="put it, and all that is read, on storage that all machines share"):
        result("a")


def test_errors_name_the_remedy(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    out = str(tmp_path / "out")
    for arguments, expected in [
        (["new.parquet"], "name one with -o FOLDER"),
        (["new.parquet", "-o", str(tmp_path / "mine")], "is not empty and has no _mufin.json"),
        (["shop/items.jsonl", "-o", out], "expected a .parquet file or a folder"),
        ([str(tmp_path / "empty"), "-o", out], "has no .parquet files"),
        (["shop", "-o", out, "--split", "test"], "omit one of them"),
        (["new.parquet", "-o", "plain.parquet"], "is a file; with --ray, expected a folder"),
    ]:
        run(folder, "predict", "runs/shop", *arguments, "--ray", code=2)
        assert expected in capsys.readouterr().err
    for address, expected in [
        ("ray://host:10001", "expected HOST:PORT of the cluster or auto"),
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1 .*refused.*start one with `ray start --head`"),
        ("node0", "expected HOST:PORT or auto"),
    ]:
        with pytest.raises(UsageError, match=expected):
            cluster._join(None, address)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    run(folder, "predict", "runs/shop", "new.parquet", "-o", out, "--ray", code=2)
    assert 'pip install "mufin[ray]"' in capsys.readouterr().err
