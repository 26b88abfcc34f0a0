"""A Milvus collection of index entries: create, search and change it.

Each label has a number in the collection. Filters contain such numbers only, never ids of labels.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mufin.data.ragged import Ints, padded
from mufin.errors import ModelError, MufinError, ServiceError, UsageError
from mufin.retrieve.build import EXACT_MAX_ENTRIES
from mufin.retrieve.entries import Entries
from mufin.settings import Retrieve

URI, TOKEN = "MUFIN_MILVUS_URI", "MUFIN_MILVUS_TOKEN"  # environment variables
FINGERPRINT = "mufin.fingerprint"  # a property of the collection
SECONDS, FILL_SECONDS = 300.0, 24 * 3600.0  # for a call, and to index or load a collection
CALM = {
    "grpc.keepalive_time_ms": 360_000,
    "grpc.keepalive_permit_without_calls": 0,
}  # milvus-lite needs 300 s
NOT_LOADED = 101  # an error of Milvus
MOST_BYTES = 65_535  # of a text, a limit of Milvus
ENTRIES_PER_LABEL = 2**16  # the key of an entry is number · 2^16 + its position among the label's entries
FLOATS_PER_INSERT = 2**20
GRAPH = {"M": 16, "efConstruction": 128}
EFFORT, MOST_EFFORT = 8, 32_768  # HNSW candidates per label that is asked for, and a limit of Milvus
INSTALL = 'pip install "mufin[milvus]"'


@dataclass(frozen=True)
class Collection:
    """A collection of the entries of one model, which its fingerprint identifies."""

    uri: str
    name: str
    fingerprint: str

    @classmethod
    def named(cls, uri: str, prefix: str, fingerprint: str) -> Collection:
        """Return the collection of the model with this fingerprint; MUFIN_MILVUS_URI replaces the address."""
        return cls(os.environ.get(URI) or uri, f"{prefix}_{fingerprint[:8]}", fingerprint)

    def fill(self, entries: Entries, numbers: Ints, texts: Mapping[str, list[str]] | None = None) -> None:
        """Create the collection; it gets its name once it is complete.

        Label row l of the entries has the number numbers[l]. `texts` are further fields, one text per label.
        """
        client, draft = connect(self.uri), f"{self.name}_draft"
        with explained(self.uri):
            if client.has_collection(self.name, timeout=SECONDS):
                raise UsageError(
                    f"Milvus at {self.uri} has a collection {self.name!r} already: choose another name, "
                    f"or drop it with MilvusClient({self.uri!r}).drop_collection({self.name!r})"
                )
            client.drop_collection(draft, timeout=SECONDS)  # of a process that was killed
            _create(client, draft, entries.vectors.shape[1], self.fingerprint, list(texts or ()))
            for rows in _rows(entries, numbers, texts or {}):
                client.insert(draft, rows, timeout=SECONDS)
            client.flush(draft, timeout=FILL_SECONDS)
            _index(client, draft, len(entries))
            client.rename_collection(draft, self.name, timeout=SECONDS)

    @cached_property
    def client(self) -> Any:
        """A client, once it is certain that the collection is there and belongs to the model."""
        client = connect(self.uri)
        with explained(self.uri):
            if not client.has_collection(self.name, timeout=SECONDS):
                raise ModelError(
                    f"Milvus at {self.uri} has no collection {self.name!r}, in which this model searches; "
                    f"fill it with `mufin export RUN --to milvus`, or set {URI} to its address"
                )
            found = client.describe_collection(self.name, timeout=SECONDS).get("properties", {})
            if found.get(FINGERPRINT) != self.fingerprint:
                raise ModelError(
                    f"the collection {self.name!r} of Milvus at {self.uri} belongs to another model: rename "
                    "or drop it, then fill that of this model with `mufin export RUN --to milvus`"
                )
            client.load_collection(self.name, timeout=FILL_SECONDS)
        return client

    def connected(self) -> None:
        """Raise a ServiceError or a ModelError unless the collection can be searched."""
        self.client  # noqa: B018

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Search parameters for one label; HNSW needs a number of candidates."""
        with explained(self.uri):
            kind = self.client.describe_index(self.name, "vector", timeout=SECONDS)["index_type"]
        return {"ef": EFFORT} if kind == "HNSW" else {}

    def search(self, queries: Tensor, n: int, condition: str) -> tuple[Ints, np.ndarray]:
        """Return the numbers of the n nearest labels of queries (B, D) on the CPU, and their similarity.

        Both are (B, ≤ n), best first, padded with −1 and −∞.
        """
        effort = {name: min(value * n, MOST_EFFORT) for name, value in self.parameters.items()}
        ask = {
            "data": queries.numpy(), "anns_field": "vector", "filter": condition, "limit": n,
            "group_by_field": "label", "search_params": {"params": effort}, "timeout": SECONDS,
        }  # fmt: skip
        with explained(self.uri):
            try:
                found = self.client.search(self.name, **ask)
            except Exception as error:
                if getattr(error, "code", None) != NOT_LOADED:
                    raise
                self.client.load_collection(self.name, timeout=FILL_SECONDS)  # the server was restarted
                found = self.client.search(self.name, **ask)
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        keys = np.fromiter(chain.from_iterable(map(attrgetter("ids"), found)), np.int64)
        near = np.fromiter(chain.from_iterable(map(attrgetter("distances"), found)), np.float32)
        return padded(keys // ENTRIES_PER_LABEL, sizes, -1), padded(near, sizes, -np.inf)

    def add(self, entries: Entries, numbers: Ints, free: int) -> None:
        """Upsert entries of labels whose numbers were free; drop what a killed process left under them."""
        with explained(self.uri):
            self.client.delete(self.name, filter=f"label >= {free}", timeout=SECONDS)
            for rows in _rows(entries, numbers, {}):
                self.client.upsert(self.name, rows, timeout=SECONDS)

    def remove(self, numbers: Ints) -> None:
        """Delete the entries of these labels."""
        with explained(self.uri):
            self.client.delete(self.name, filter=among(numbers), timeout=SECONDS)


def check_milvus(settings: Retrieve, processes: int) -> None:
    """Raise an error if a model with these settings could not be saved: before training, not after it."""
    if settings.search != "milvus":
        return
    uri = os.environ.get(URI) or settings.uri or ""
    if processes > 1 and uri.endswith(".db"):
        raise UsageError(f"{uri} is for one process, but {processes} train: set retrieve.uri to a server")
    connect(uri)


def connect(uri: str) -> Any:
    """Return a client of a server, or of the embedded engine if this is a file.

    The token is sent to MUFIN_MILVUS_URI only, so that no model folder can send it elsewhere.
    """
    try:
        from pymilvus import MilvusClient

        if uri.endswith(".db"):
            import milvus_lite  # noqa: F401
    except ImportError:
        raise UsageError(f"search in Milvus needs other packages; run: {INSTALL}") from None
    if uri.endswith(".db") and not Path(uri).parent.is_dir():
        raise UsageError(
            f"the folder {Path(uri).parent} for {Path(uri).name} does not exist; create it first"
        )
    # They log, with tracebacks, the errors that `explained` reports and calls that the engine does not have.
    for name in ("pymilvus", "milvus_lite", *(["grpc._server"] if uri.endswith(".db") else [])):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    token = os.environ.get(TOKEN, "") if uri == os.environ.get(URI) else ""
    with explained(uri):
        options = CALM | ({"grpc.enable_http_proxy": 0} if uri.endswith(".db") else {})
        return MilvusClient(uri, token=token, grpc_options=options)


@contextmanager
def explained(uri: str) -> Iterator[None]:
    """Turn any error of the client into a ServiceError that says what to do."""
    try:
        yield
    except MufinError:
        raise
    except Exception as error:  # of pymilvus, gRPC and the file system
        reason = " ".join(str(getattr(error, "message", error)).split())[:200]
        remedy = f"start it, or set {URI} to its address"
        if "Open local milvus failed" in reason:
            remedy = (
                "only one process at a time can use a file; for several, run "
                f"`milvus-lite server --data-dir {uri} --host 127.0.0.1` and set {URI}=http://127.0.0.1:19530"
            )
        raise ServiceError(f"Milvus at {uri} does not answer ({reason}): {remedy}") from None


def _create(client: Any, name: str, width: int, fingerprint: str, texts: Sequence[str]) -> None:
    """Create an empty collection; every search sees all earlier writes."""
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False)
    schema.add_field("entry", DataType.INT64, is_primary=True)
    schema.add_field("label", DataType.INT64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
    for field in texts:
        schema.add_field(field, DataType.VARCHAR, max_length=MOST_BYTES)
    client.create_collection(
        name,
        schema=schema,
        consistency_level="Strong",
        properties={FINGERPRINT: fingerprint},
        timeout=SECONDS,
    )


def _index(client: Any, name: str, n_entries: int) -> None:
    """Index the vectors: exactly if they are few, else as a graph."""
    indexes = client.prepare_index_params()
    if n_entries <= EXACT_MAX_ENTRIES:
        indexes.add_index("vector", index_name="vector", index_type="FLAT", metric_type="IP")
    else:
        indexes.add_index("vector", index_name="vector", index_type="HNSW", metric_type="IP", params=GRAPH)
    client.create_index(name, indexes, timeout=FILL_SECONDS)


def _rows(entries: Entries, numbers: Ints, texts: Mapping[str, list[str]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a collection in batches; label row l has the number numbers[l]."""
    owners = entries.labels.numpy()
    labels = numbers[owners]
    keys = labels * ENTRIES_PER_LABEL + np.arange(len(owners)) - entries.offsets[owners]
    size = max(1, FLOATS_PER_INSERT // entries.vectors.shape[1])
    for start in range(0, len(owners), size):
        part = slice(start, start + size)
        columns = {
            "entry": keys[part].tolist(),
            "label": labels[part].tolist(),
            "vector": entries.vectors[part].numpy(),
        }
        columns |= {name: [_cut(column[row]) for row in owners[part]] for name, column in texts.items()}
        yield [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:MOST_BYTES].decode(errors="ignore")


def among(numbers: Ints) -> str:
    """Return the condition that a label has one of these numbers."""
    return f"label in [{', '.join(map(str, numbers.tolist()))}]"
