"""A Ray cluster, joined or started on this machine, and workers that share tasks on it.

Ray Data hands tasks to a pool of actors. It starts an actor again when its process dies, and repeats the task
that the actor had. Ray is imported only here, and only when asked for.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import socket
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mufin.errors import MufinError, UsageError
from mufin.files.folder import temporary_path

INSTALL = 'Ray is not installed; run: pip install "mufin[ray]"'
LOCALHOST = "127.0.0.1"
OBJECT_STORE = 256 << 20  # bytes of a local Ray: only descriptions of tasks pass through it
REPEATS = 3  # of a task whose worker died; then the task itself must be to blame
log = logging.getLogger("mufin")
QUIET = {  # read when Ray is imported or started
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # drop all lines of Ray's processes
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns of a change to come
}
# Ray has no option to listen on the loopback address only, except on Windows and macOS, where it is the
# default; this says that we are not part of a cluster there, and works on Linux, too.
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@contextmanager
def connected(address: str | None = None, cpus: int | None = None) -> Iterator[None]:
    """Join a cluster, or without an address start one on this machine, and leave or stop it at the end.

    If this process is connected to a cluster already, use that one. A cluster on this machine listens on the
    loopback address only, without a dashboard.
    """
    ray = _imported(local=address is None)
    if ray.is_initialized():
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_environment(QUIET if address else QUIET | ALONE))
        stack.enter_context(_sigterm_kept())
        folder = tempfile.TemporaryDirectory(prefix="mufin-ray-", ignore_cleanup_errors=True)
        files = stack.enter_context(folder)  # of a local Ray
        stack.callback(ray.shutdown)
        if address is None:
            _start(ray, files, cpus)
        else:
            _join(ray, address)
        yield


def work(
    worker: Callable[..., Callable[[Any], Any]],
    arguments: Sequence[Any],
    tasks: Sequence[Any],
    shared: Path,
    use_gpus: bool = True,
) -> Iterator[Any]:
    """Make workers by `worker(*arguments)`, and yield what they return for each task, in any order.

    A worker has a GPU if the cluster has any, else one CPU core. What it raises is raised here. All machines
    must see the folder `shared`.
    """
    from ray.data import ActorPoolStrategy, DataContext, from_items
    from ray.exceptions import RayError

    context = DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    share = _share([node["Resources"] for node in _alive()], use_gpus)
    rows = [{"number": number, "task": pickle.dumps(task)} for number, task in enumerate(tasks)]
    attempts = temporary_path(shared.absolute() / "attempts")
    attempts.mkdir()
    try:
        results = from_items(rows, override_num_blocks=len(rows)).map(
            cast(Any, _Actor),  # a class, of which each process makes one object
            fn_constructor_args=(worker, tuple(arguments), attempts, share.cpus),
            compute=ActorPoolStrategy(size=min(share.workers, len(rows))),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
        )
        for row in results.iter_rows():
            yield _result(row["result"])
    except RayError as error:
        raise MufinError(_explained(error)) from error
    finally:
        shutil.rmtree(attempts, ignore_errors=True)


class _Actor:
    """A worker in a process of its own; it sends errors back as values, with their traceback as a note."""

    def __init__(
        self,
        worker: Callable[..., Callable[[Any], Any]],
        arguments: tuple[Any, ...],
        attempts: Path,
        cpus: int,
    ) -> None:
        import torch

        torch.set_num_threads(cpus)
        self.attempts = attempts
        self.work: Callable[[Any], Any] | None = None
        self.broken: Exception | None = None
        try:
            _check_shared(attempts)
            self.work = worker(*arguments)
        except Exception as error:  # of every task, instead of the start of ever new actors
            self.broken = error

    def __call__(self, row: dict[str, Any]) -> dict[str, bytes]:
        """Return the result of a task, whether others had died over it, or an error."""
        try:
            if self.work is None:
                raise self.broken or RuntimeError("no worker")
            with self._attempt(row["number"]) as deaths:
                result = self.work(pickle.loads(row["task"]))
            return {"result": pickle.dumps((result, deaths, None))}
        except Exception as error:
            error.add_note("".join(traceback.format_exception(error)))
            return {"result": pickle.dumps((None, 0, _portable(error)))}

    @contextmanager
    def _attempt(self, number: int) -> Iterator[int]:
        """Leave a note while a task is worked on; yield how many notes dead workers have left."""
        deaths = len(list(self.attempts.glob(f"{number}-*")))
        if deaths > REPEATS:
            raise MufinError(
                f"{deaths} workers died over one task, often for lack of memory or because of a damaged "
                "image; run the same command again to compute what is missing"
            )
        note = self.attempts / f"{number}-{deaths}"
        note.touch()
        yield deaths
        note.unlink(missing_ok=True)


def _check_shared(attempts: Path) -> None:
    """Raise an error if a folder of this worker is not that of the command."""
    if not attempts.is_dir():
        raise UsageError(
            f"{attempts.parent} on {socket.gethostname()} is not the folder that the command writes to; put "
            "it, and all that is read, on storage that all machines share under the same path"
        )


def _portable(error: Exception) -> Exception:
    """Return the error, or its text if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _result(sent: bytes) -> Any:
    value, deaths, error = pickle.loads(sent)
    if error is not None:
        raise error
    if deaths:
        log.warning("a worker died; what it was doing was done again")
    return value


# -- clusters ------------------------------------------------------------------------------------------------


def _imported(local: bool) -> Any:
    """Import Ray, with the environment that it reads then."""
    with _environment(QUIET | ALONE if local else QUIET):
        try:
            import ray
            import ray.data
        except ImportError as error:
            raise UsageError(INSTALL) from error
    return ray


def _start(ray: Any, folder: str, cpus: int | None) -> None:
    """Start Ray on this machine, for this process alone."""
    if (found := ray.util.get_node_ip_address()) != LOCALHOST:  # imported before with another environment
        raise UsageError(
            f"Ray would listen on {found}, expected {LOCALHOST}, as this program imported ray before mufin "
            f"did; set {next(iter(ALONE))}=0 before that, or call ray.init yourself"
        )
    with _without_stderr():
        ray.init(
            address="local", num_cpus=cpus, object_store_memory=OBJECT_STORE, include_dashboard=False,
            log_to_driver=False, logging_level="CRITICAL", _temp_dir=folder,
        )  # fmt: skip


def _join(ray: Any, address: str) -> None:
    if address.startswith("ray://"):
        raise UsageError(
            f"{address} is the address of a Ray client server, expected HOST:PORT of the cluster or auto; "
            "run the command on a machine of the cluster, or as a job: ray job submit -- mufin …"
        )
    try:
        if address != "auto":
            _reach(address)  # Ray tries for minutes
        with _without_stderr():
            ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"no Ray cluster at {address} ({reason}); start one with `ray start --head`, name its HOST:PORT, "
            "or omit the address to start Ray on this machine"
        ) from error


def _reach(address: str) -> None:
    """Raise an error unless something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("expected HOST:PORT or auto")
    socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


@dataclass(frozen=True)
class _Share:
    """How many workers a cluster has room for, and what each of them gets."""

    workers: int
    cpus: int
    gpus: int


def _alive() -> list[dict[str, Any]]:
    """Return the machines of the cluster."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _share(machines: Sequence[Mapping[str, float]], use_gpus: bool) -> _Share:
    """Give each worker a GPU and its share of the cores beside it, or else one core.

    >>> _share([{"CPU": 16.0, "GPU": 4.0}, {"CPU": 64.0}], use_gpus=True)
    _Share(workers=4, cpus=4, gpus=1)
    >>> _share([{"CPU": 2.0}], use_gpus=True)
    _Share(workers=2, cpus=1, gpus=0)
    """
    gpus = [(int(one.get("GPU", 0)), int(one.get("CPU", 0))) for one in machines if one.get("GPU", 0) >= 1]
    if use_gpus and gpus:
        return _Share(sum(n for n, _ in gpus), max(1, min(cpus // n for n, cpus in gpus)), 1)
    return _Share(max(1, sum(int(one.get("CPU", 0)) for one in machines)), 1, 0)


def _explained(error: Exception) -> str:
    """Describe a failure of Ray itself on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else "no reason given"
    return (
        f"Ray stopped ({type(error).__name__}: {reason}); check that the cluster is up and that all machines "
        "have this version of mufin, then run the same command again to compute what is missing"
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, unless they are set, for the duration of the block."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Drop what Ray's libraries write to standard error while they start; failures are raised anyway."""
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Put back the handler of SIGTERM, which Ray replaces."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
