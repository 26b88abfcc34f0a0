"""Let each operation on a file fail in turn, and see what comes of it.

    python benchmarks/reliability/faults.py                   # all of train, save, labels and serve: minutes
    python benchmarks/reliability/faults.py --only train --every 20

A library loaded before all others (faults.c, compiled here) counts the calls that open, write, sync, rename,
link and remove files below a folder, and lets the n-th fail: once with "input/output error" and "permission
denied", and with "no space left" from there on. --reads counts reading, too. Every attempt is a process of
its own. It must end with the undisturbed result, or with an OSError or a MufinError that names a file. The
folder must then hold the old model, the new one or none, and the next attempt must succeed and leave nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY = "MUFIN_FAULTS"  # environment variable: the compiled library
ERRORS = {"EIO": errno.EIO, "EACCES": errno.EACCES, "ENOSPC": errno.ENOSPC}  # the last one stays
FOREIGN = "a file of someone else"


@dataclass(frozen=True)
class Fault:
    """The n-th operation fails; n = 0: none."""

    n: int
    error: str
    reads: bool


@dataclass(frozen=True)
class Outcome:
    """What a process said at its end."""

    error: str  # its class; empty: it succeeded
    message: str
    operations: int
    failed: str  # the operation
    value: Any


def attempt(work: Callable[[], Any], root: Path, fault: Fault) -> Outcome:
    """Do the work in a child process in which an operation fails."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        library = ctypes.CDLL(os.environ[LIBRARY])
        library.failed.restype = ctypes.c_char_p
        code = ERRORS[fault.error]
        library.arm(str(root).encode(), fault.n, code, int(code == errno.ENOSPC), int(fault.reads))
        error = message = ""
        value = None
        try:
            value = work()
        except BaseException as caught:
            error = "/".join(kind.__name__ for kind in type(caught).__mro__)
            message = str(caught)
        library.disarm()
        found = [error, message, library.counted(), (library.failed() or b"").decode(), value]
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not said:
        return Outcome("died", f"status {status}", 0, "", None)
    return Outcome(*json.loads(said))


def listing(folder: Path) -> dict[str, bytes]:
    """All files below a folder, except the lock, with their bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".mufin.lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class Study:
    """One kind of work, done again and again in a fresh folder."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # things that stay
        self.root = folder / "root"  # operations below fail
        self.run = self.root / "run"

    def prepare(self) -> None:
        """Fill the root before an attempt."""

    def work(self) -> Any:
        """Do it."""
        raise NotImplementedError

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        (self.root / "foreign.txt").write_text(FOREIGN)
        self.prepare()

    def undisturbed(self) -> tuple[dict[str, bytes], dict[str, bytes], int]:
        """The run before and after, and the number of operations."""
        self.reset()
        before = listing(self.run)
        found = attempt(self.work, self.root, Fault(0, "EIO", self.reads))
        if found.error:
            raise SystemExit(f"{self.name} fails undisturbed: {found.error}: {found.message}")
        return before, listing(self.run), found.operations

    reads = False

    def check(self, fault: Fault, before: dict[str, bytes], after: dict[str, bytes]) -> tuple[str, str]:
        """Return how an attempt ended, and what is wrong with it."""
        self.reset()
        found = attempt(self.work, self.root, fault)
        wrong = ""
        kinds = found.error.split("/")
        now = {name: data for name, data in listing(self.run).items() if not name.startswith(".mufin")}
        if not found.error:
            ended = "done all the same" if found.failed else "no such operation"
            if now != after:
                wrong = f"another result: {differing(now, after)}"
        else:
            ended = "error"
            if not {"MufinError", "OSError", "Refused"} & set(kinds):
                wrong = f"{kinds[0]}: {found.message}"
            elif not understood(found.message):
                wrong = f"unclear: {kinds[0]}: {found.message}"
            elif holds(now) not in (holds(before), holds(after)):
                wrong = f"after {kinds[0]} ({found.message}) neither the old model nor the new one"
        if (self.root / "foreign.txt").read_text() != FOREIGN:
            wrong = "someone else's file was touched"
        if not wrong and found.error:
            again = attempt(self.again, self.root, Fault(0, "EIO", False))
            if again.error:
                wrong = f"the next attempt fails: {again.error.split('/')[0]}: {again.message}"
            elif listing(self.run) != after:
                wrong = f"the next attempt leaves another folder: {differing(listing(self.run), after)}"
        return ended, f"operation {fault.n} ({found.failed}) {fault.error}: {wrong}" if wrong else ""

    def again(self) -> Any:
        """The next attempt."""
        return self.work()


def understood(message: str) -> bool:
    """Whether an error names a file or folder and a reason."""
    return "/" in message and "Errno None" not in message


def holds(files: dict[str, bytes]) -> bytes:
    """The manifest: it has the hash of every part, and is replaced last."""
    return files.get("mufin.json", b"")


def differing(one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return sorted(name for name in {**one, **other} if one.get(name) != other.get(name))[:5]


class Train(Study):
    """A training, from an empty cache to a model; the next attempt resumes it."""

    name = "train"

    def __init__(self, folder: Path) -> None:
        from made import made_config, made_encoders, made_shop

        super().__init__(folder)
        made_shop(2).write(folder / "shop")
        changes = ["pretrain.epochs=1", "finetune.epochs=1", "memory.neighbours=5"]
        self.config = made_config(*made_encoders(folder / "encoders")).override(changes)
        (folder / "cold").mkdir()

    def work(self) -> Any:
        from mufin import Catalogue, fit

        os.environ["MUFIN_CACHE"] = str(self.root / "cache")
        fit(Catalogue.read(self.folder / "shop"), self.config, self.run, quiet=True, if_exists="resume")


class Save(Train):
    """Saving a model over another one."""

    name = "save"

    def __init__(self, folder: Path) -> None:
        from made import made_shop
        from mufin import fit

        super().__init__(folder)
        os.environ["MUFIN_CACHE"] = str(folder / "cold")
        fit(made_shop(2), self.config, folder / "old", quiet=True)
        self.model = fit(made_shop(2), self.config.override(["seed=1"]), quiet=True)

    def prepare(self) -> None:
        shutil.copytree(self.folder / "old", self.run)

    def work(self) -> Any:
        from mufin import save

        save(self.model, self.run)


class Labels(Save):
    """Adding a label to a model folder."""

    name = "labels"

    def work(self) -> Any:
        from mufin import Item
        from mufin.model.store import editing_labels

        with editing_labels(self.run) as model:
            if not model.labels.has("zebra"):
                model.add_labels(Item("zebra", ["zebra crossing"]))


class Refused(Exception):
    """A service answered with a problem."""


class Serve(Labels):
    """Adding a label over HTTP; what was refused must not be served, what was acknowledged must be."""

    name = "serve"

    def work(self) -> Any:
        from serving import client_of

        with client_of(self.run) as client:
            labels = {"labels": [{"id": "zebra", "texts": ["zebra crossing"]}]}
            known = client.get("/v1/labels/zebra").status_code == 200
            done = None if known else client.post("/v1/labels", json=labels)
            served = client.get("/v1/labels/zebra").status_code == 200
            if done is not None and done.status_code != 201:
                if served:
                    raise AssertionError(f"refused with {done.status_code}, and served all the same")
                raise Refused(f"/v1/labels: {done.status_code} {done.json()['detail']}")
            if not served:
                raise AssertionError("acknowledged, but not served")


STUDIES = {study.name: study for study in (Train, Save, Labels, Serve)}


def preload() -> None:
    """Compile the library and start this program again with it."""
    if LIBRARY in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="mufin-faults-so-")
    library = f"{folder}/faults.so"
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", library, str(HERE / "faults.c"), "-ldl"], check=True
    )
    threads = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # threads do not survive a fork
    environment = os.environ | threads | {LIBRARY: library, "LD_PRELOAD": library}
    done = subprocess.run([sys.executable, *sys.argv], env=environment, check=False)
    shutil.rmtree(folder)
    raise SystemExit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=STUDIES, nargs="+", default=list(STUDIES))
    parser.add_argument("--every", type=int, default=1, help="let only every n-th operation fail")
    parser.add_argument("--errors", choices=ERRORS, nargs="+", default=list(ERRORS))
    parser.add_argument("--reads", action="store_true")
    options = parser.parse_args()
    preload()
    os.environ.pop("LD_PRELOAD")
    sys.path.insert(0, str(HERE.parents[1] / "tests"))
    found: dict[str, Any] = {}
    problems = []
    for name in options.only:
        folder = Path(tempfile.mkdtemp(prefix="mufin-faults-"))
        try:
            study = STUDIES[name](folder)
            study.reads = options.reads
            before, after, operations = study.undisturbed()
            ended: Counter[str] = Counter()
            for n in range(1, operations + 1, options.every):
                for error in options.errors:
                    how, wrong = study.check(Fault(n, error, options.reads), before, after)
                    ended[how] += 1
                    if wrong:
                        problems.append(f"{name}: {wrong}")
                        print(problems[-1], file=sys.stderr, flush=True)
            found[name] = {"operations": operations, "faults": ended.total(), **ended}
        finally:
            shutil.rmtree(folder)
    print(json.dumps(found))
    raise SystemExit(1 if problems else 0)


if __name__ == "__main__":
    main()
