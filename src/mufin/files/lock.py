"""One writer at a time in a model folder: a lock that the system releases when its owner ends, however."""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from mufin.errors import BusyError, ModelError

log = logging.getLogger("mufin")
LOCK = ".mufin.lock"  # empty while nobody writes; never removed: whoever waits holds it open
PATIENCE = 600.0  # seconds to wait for another writer: a large index takes minutes to build
SOON = 1.0  # seconds until a waiting writer says whom it waits for
STEP = 0.02  # seconds between two tries
UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}  # what file systems without locks answer

_held = threading.local()

if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # a byte that nobody reads: locked bytes cannot be read on Windows

    def _try(file: int) -> None:
        os.lseek(file, FAR, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def writing(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a folder, against other processes and other threads; a thread may enter it again.

    Waits for another writer, and says so; after `patience` seconds that is a BusyError.
    """
    path = folder.resolve() / LOCK
    own: set[Path] = _held.__dict__.setdefault("paths", set())
    if path in own:
        yield
        return
    file = _opened(path)
    try:
        _acquire(file, path, patience)
        own.add(path)
        _sign(file, _owner())
        yield
    finally:
        if path in own:
            own.discard(path)
            _sign(file, "")
        os.close(file)  # which releases it


def _opened(path: Path) -> int:
    # A link of this name would let a stranger's folder have any file of ours emptied.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ModelError(f"{path} is a link; remove it: mufin keeps its lock there") from None
        raise


def _acquire(file: int, path: Path, patience: float) -> None:
    started, told = time.monotonic(), False
    while True:
        try:
            return _try(file)
        except OSError as error:
            if error.errno in UNSUPPORTED:  # to lose hours of training would be worse
                log.warning("%s: this file system has no locks; let nobody else write there", path.parent)
                return None
        waited = time.monotonic() - started
        if waited >= patience:
            raise BusyError(
                f"{path.parent} is being written by {_who(path)}; waited {patience:g} s: "
                "try again when it has finished"
            )
        if waited >= SOON and not told:
            log.warning("%s: waiting for %s to finish writing", path.parent, _who(path))
            told = True
        time.sleep(STEP)


def _owner() -> str:
    # Only the name of the command: its arguments may hold a token.
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]]) if sys.argv else "python"
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}"


def _sign(file: int, owner: str) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, owner.encode())


def _who(path: Path) -> str:
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        if found := "".join(filter(str.isprintable, file.read(200))):
            return found
    return "another program"
