"""One writer at a time per model folder: a lock that the OS releases however its owner exits."""

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
LOCK_NAME = ".mufin.lock"  # empty while unlocked; never removed, since waiting writers hold it open
WAIT_SECONDS = 600.0  # wait for another writer: building a large index takes minutes
REPORT_AFTER_SECONDS = 1.0  # then log which writer holds the lock
RETRY_SECONDS = 0.02  # between attempts
UNSUPPORTED_ERRNOS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}  # from file systems without locks

_thread_state = threading.local()

if sys.platform == "win32":
    import msvcrt

    LOCKED_BYTE = 1 << 30  # beyond the content: on Windows, locked bytes cannot be read

    def _try_lock(file: int) -> None:
        os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _try_lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def writing(folder: Path, patience: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock of a folder against other processes and threads; re-entrant within a thread.

    Waits for another writer and logs it; raises BusyError after `patience` seconds.
    """
    path = folder.resolve() / LOCK_NAME
    held: set[Path] = _thread_state.__dict__.setdefault("paths", set())
    if path in held:
        yield
        return
    file = _open_lock(path)
    try:
        _acquire(file, path, patience)
        held.add(path)
        _write_owner(file, _describe_owner())
        yield
    finally:
        if path in held:
            held.discard(path)
            _write_owner(file, "")
        os.close(file)  # releases the lock


def _open_lock(path: Path) -> int:
    # Do not follow links: one in a downloaded folder could make us truncate any file of the user.
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ModelError(f"{path} is a link: remove it, mufin needs this name for its lock") from None
        raise


def _acquire(file: int, path: Path, patience: float) -> None:
    started, reported = time.monotonic(), False
    while True:
        try:
            return _try_lock(file)
        except OSError as error:
            if error.errno in UNSUPPORTED_ERRNOS:  # losing hours of training would be worse
                log.warning(
                    "%s: this file system does not support locks; make sure no other program writes there",
                    path.parent,
                )
                return None
        waited = time.monotonic() - started
        if waited >= patience:
            raise BusyError(
                f"{path.parent} is being written by {_read_owner(path)}; waited {patience:g} s: "
                "try again when it has finished"
            )
        if waited >= REPORT_AFTER_SECONDS and not reported:
            log.warning("%s: waiting for %s to finish writing", path.parent, _read_owner(path))
            reported = True
        time.sleep(RETRY_SECONDS)


def _describe_owner() -> str:
    # Only the command name: its arguments may contain a token.
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]]) if sys.argv else "python"
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} ({command}), since {since}"


def _write_owner(file: int, owner: str) -> None:
    with suppress(OSError):  # on a full disk, the lock still holds
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, owner.encode())


def _read_owner(path: Path) -> str:
    with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        if found := "".join(filter(str.isprintable, file.read(200))):
            return found
    return "another program"
