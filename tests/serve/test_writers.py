"""Several writers in one model folder: nothing that was confirmed is lost, and the folder stays whole.

`MUFIN_ROUNDS=200` makes the rounds of every test two hundred.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mufin import Item, load, save
from mufin.errors import BusyError, ModelError
from mufin.files import lock
from mufin.files.folder import manifest_files
from mufin.model.store import editing_labels
from serving import Process

ROUNDS = int(os.environ.get("MUFIN_ROUNDS", "5"))

# Does what it reads, a line at a time, and says what became of it.
WRITER = """
import sys
from pathlib import Path
from mufin import Item, load, save
from mufin.errors import ModelError
from mufin.model.store import editing_labels

for line in sys.stdin:
    what, id, folder = line.rstrip("\\n").split("\\t")
    folder = Path(folder)
    try:
        if what == "change":
            with editing_labels(folder) as model:
                model.add_labels(Item(id, [id]))
        elif what == "load":
            model = load(folder)
        elif what == "save":
            model.add_labels(Item(id, [id]))
            save(model, folder)
        print("done", flush=True)
    except ModelError as error:
        print(error, flush=True)
"""


class Writer:
    """Another process that writes to folders."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, what: str, id: str, folder: Path) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\t{id}\t{folder}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def model_folder(texts_alone: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(texts_alone, tmp_path / "model"))


@pytest.fixture(scope="module")
def writers() -> Iterator[tuple[Writer, Writer]]:
    both = Writer(), Writer()
    yield both
    for writer in both:
        writer.process.kill()
        writer.process.communicate()


def posting(service: Process) -> Callable[[str], str]:
    """Adds a label over HTTP; anything but 201 is an error."""

    def add(id: str) -> str:
        body = json.dumps({"labels": [{"id": id, "texts": [id]}]}).encode()
        request = urllib.request.Request(
            f"{service.address}/v1/labels", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return "done" if answer.status == 201 else str(answer.status)

    return add


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that start together."""
    ready = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        ready.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def rounds(folder: Path, *adds: Callable[[str], str]) -> None:
    """Every round each writer adds a label at the same moment; all that was confirmed must be there."""
    confirmed: set[str] = set()
    for number in range(ROUNDS):
        ids = [f"label-{number}-{writer}" for writer in range(len(adds))]
        calls = [lambda add=add, id=id: add(id) for add, id in zip(adds, ids, strict=True)]
        assert at_once(*calls) == ["done"] * len(adds)
        confirmed |= {*ids}
    assert confirmed <= {*load(folder).labels.items.ids.to_pylist()}, "a label was lost"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == manifest_files(folder) | {"mufin.json", "README.md", ".mufin.lock"}, (
        "something was left behind"
    )


def test_two_threads(model_folder: Path) -> None:
    def add(id: str) -> str:
        with editing_labels(model_folder) as model:
            model.add_labels(Item(id, [id]))
        return "done"

    rounds(model_folder, add, add)


def test_two_processes(model_folder: Path, writers: tuple[Writer, Writer]) -> None:
    rounds(model_folder, *(lambda id, w=writer: w.ask("change", id, model_folder) for writer in writers))


def test_two_services_and_another_process(
    model_folder: Path, start: Callable[..., Process], writers: tuple[Writer, Writer]
) -> None:
    services = [posting(start(model_folder)) for _ in range(2)]
    rounds(model_folder, *services, lambda id: writers[0].ask("change", id, model_folder))


def test_two_commands(model_folder: Path, tmp_path: Path) -> None:
    def command(id: str) -> Callable[[], subprocess.CompletedProcess[str]]:
        file = tmp_path / f"{id}.jsonl"
        file.write_text(json.dumps({"id": id, "texts": [id]}) + "\n")
        words = [sys.executable, "-m", "mufin", "add-labels", str(model_folder), str(file)]
        return lambda: subprocess.run(words, capture_output=True, text=True, check=True)

    for number in range(max(1, ROUNDS // 10)):
        ids = [f"label-{number}-{writer}" for writer in range(2)]
        said = at_once(*map(command, ids))
        assert all("Added 1" in done.stdout for done in said)
        assert {*ids} <= {*load(model_folder).labels.items.ids.to_pylist()}


def test_of_two_that_loaded_the_same_one_is_told(model_folder: Path, writers: tuple[Writer, Writer]) -> None:
    """Each adds to the labels that it loaded: the second to save would undo what the first has added."""
    for number in range(ROUNDS):
        loads = (lambda w=writer: w.ask("load", "", model_folder) for writer in writers)
        assert at_once(*loads) == ["done"] * 2
        ids = [f"label-{number}-{which}" for which in range(2)]
        asked = zip(writers, ids, strict=True)
        said = at_once(*(lambda w=w, id=id: w.ask("save", id, model_folder) for w, id in asked))
        assert sorted(answer == "done" for answer in said) == [False, True]
        assert "load it again and repeat the change" in "".join(said)
        there = load(model_folder).labels.items.ids.to_pylist()
        assert [id in there for id in ids] == [answer == "done" for answer in said]


def test_readers_are_not_disturbed(model_folder: Path, writers: tuple[Writer, Writer]) -> None:
    """A reader that began with the manifest of a moment ago reads on with the new one."""
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            assert writers[0].ask("change", f"more-{number}", model_folder) == "done"
            number += 1

    counts: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            while len(counts) < 2 * ROUNDS or (counts[-1] < counts[0] + 3 and not writing.done()):
                counts.append(len(load(model_folder).labels))
        finally:
            stop.set()
        writing.result()
    assert counts == sorted(counts)


# -- the lock -----------------------------------------------------------------------------------------------


def test_who_writes_is_named(model_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.writing(model_folder):
            held.set()
            done.wait(20)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait(20)
        try:
            said = f"written by process {os.getpid()} on .*since 20"
            with pytest.raises(BusyError, match=said), lock.writing(model_folder, patience=1.2):
                pass
        finally:
            done.set()
    assert f"waiting for process {os.getpid()}" in caplog.text
    assert (model_folder / ".mufin.lock").read_bytes() == b""


def test_the_lock_of_a_writer_that_was_killed_is_free(model_folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mufin.files import lock\n"
        "with lock.writing(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(model_folder)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(BusyError, match=f"process {holder.pid}"), lock.writing(model_folder, patience=0.1):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with lock.writing(model_folder, patience=0.5):
        pass


def test_a_thread_may_enter_twice(model_folder: Path) -> None:
    with lock.writing(model_folder), editing_labels(model_folder) as model:
        model.add_labels(Item("zebra", ["zebra"]))
    with pytest.raises(ModelError, match="mufin train"), editing_labels(model_folder / "nowhere"):
        pass
    assert not (model_folder / "nowhere").exists()


def test_what_a_model_was_saved_as_is_known_too(model_folder: Path) -> None:
    """Saving twice is no conflict with oneself; nor is a model that is saved over another one."""
    model, other = load(model_folder), load(model_folder)
    for id in ("one", "two"):
        model.add_labels(Item(id, [id]))
        save(model, model_folder)
    other.add_labels(Item("three", ["three"]))
    with pytest.raises(ModelError, match="changed by another program"):
        save(other, model_folder)
    save(other, model_folder.parent / "copy")
    assert "two" in load(model_folder).labels.items.ids.to_pylist()
