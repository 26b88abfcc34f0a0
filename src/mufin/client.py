"""Client: a running service (`mufin serve`) from Python, with the methods of a model."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, overload
from urllib.parse import quote, urlencode, urlsplit

import httpcore2 as httpcore

from mufin.data.convert import as_items
from mufin.data.images import open_picture, read_bytes, suffix_of
from mufin.errors import ServiceError, UsageError
from mufin.version import VERSION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mufin.data.convert import Frame, ItemLike
    from mufin.data.item import Item, Picture
    from mufin.data.items import Items
    from mufin.model.hits import HitLists, Hits

ITEMS_PER_CALL = 64  # the service takes no more, and no more images
BYTES_PER_CALL = 8 << 20  # half of what the service takes
BUSY = (429, 503)  # with Retry-After: nothing was done, so retry


class Descriptor(TypedDict):
    """A text or an image of an item or a label."""

    kind: Literal["text", "image"]
    text: NotRequired[str]
    n: NotRequired[int]
    url: NotRequired[str | None]


class Near(TypedDict):
    """A label near another one."""

    label: str
    text: str
    similarity: float
    images: int


class Example(TypedDict):
    """A training item of a label."""

    id: str
    text: str
    images: int
    similarity: float


class Explained(TypedDict):
    """How an item relates to a label; `attention` has a row per descriptor of the item."""

    query: list[Descriptor]
    label: list[Descriptor]
    attention: list[list[float]]
    kind: Literal["cross-attention", "similarity"]
    alpha: float
    frequency: int
    nearest: list[Near]
    examples: list[Example]


class Label(TypedDict):
    """A label as it is listed."""

    id: str
    text: str
    texts: list[str]
    images: int
    frequency: int
    added: bool


class FullLabel(Label):
    """One label."""

    alpha: float
    category: str | None


class ServiceInfo(TypedDict):
    """What is served, and its limits; `model` is a version that changes with every write."""

    name: str
    model: str
    labels: int
    living: int
    memory: int
    modalities: Literal["text+image", "text", "image"]
    own_items: bool
    adapts: bool
    signals: dict[str, str]
    categories: bool
    catalogue: bool
    splits: list[str]
    writable: bool
    needs_token: bool
    k_max: int
    limits: dict[str, float]


class Client:
    """A client of a running service; connections are reused, and threads may share a client.

    Items are those that `Mufin.recommend` accepts; an `Item` with only an id names an item of the service's
    catalogue. Many items are sent in several requests. Requests to a busy service are retried for up to
    `timeout` seconds; after that, and for any other failure, a call raises a ServiceError.

    >>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     client.recommend(Item(texts=["oak desk"], images=["desk.jpg"]), k=3)
    """

    def __init__(
        self, address: str = "http://127.0.0.1:8000", token: str | None = None, timeout: float = 30.0
    ) -> None:
        """`token` is that of `mufin serve --token`, needed to write."""
        if urlsplit(address).scheme not in ("http", "https"):
            raise UsageError(f"address {address!r}: expected one like http://127.0.0.1:8000")
        self.address, self.timeout = address.rstrip("/"), timeout
        self._headers = [(b"User-Agent", f"mufin/{VERSION}".encode()), (b"Accept", b"application/json")]
        if token is not None:
            self._headers.append((b"Authorization", b"Bearer " + token.encode()))
        self._pool = httpcore.ConnectionPool()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    @overload
    def recommend(  # type: ignore[overload-overlap]  # a str is one item, though also a sequence
        self, items: ItemLike, k: int = 10, allow: Sequence[str] | None = None, deny: Sequence[str] = (),
        *, min_probability: float = 0.0,
    ) -> Hits: ...  # fmt: skip
    @overload
    def recommend(
        self, items: Iterable[ItemLike] | Frame, k: int = 10, allow: Sequence[str] | None = None,
        deny: Sequence[str] = (), *, min_probability: float = 0.0,
    ) -> HitLists: ...  # fmt: skip
    def recommend(
        self, items: ItemLike | Iterable[ItemLike] | Frame, k: int = 10, allow: Sequence[str] | None = None,
        deny: Sequence[str] = (), *, min_probability: float = 0.0,
    ) -> Hits | HitLists:  # fmt: skip
        """Return the k best labels of an item, or of each item, as `Mufin.recommend` does."""
        from mufin.model.hits import HIT_FIELDS, Hit, HitLists, Hits

        table, single = as_items(items)
        asked = {"k": k, "deny": list(deny), "min_probability": min_probability}
        asked["allow"] = None if allow is None else list(allow)
        found = [
            Hits(Hit(**{name: hit[name] for name in HIT_FIELDS}) for hit in result["hits"])
            for result in self._over("/v1/recommend", "items", _queries(table), "results", asked)
        ]
        return found[0] if single else HitLists(found, table.ids.to_pylist())

    def embed(self, items: ItemLike | Iterable[ItemLike] | Frame) -> NDArray[np.float32]:
        """Return the embedding of an item, (D,), or of each item, (n, D); each has length 1."""
        import numpy as np

        table, single = as_items(items)
        found = np.array(list(self._over("/v1/embed", "items", _queries(table), "vectors")), np.float32)
        return found[0] if single else found

    def explain(self, item: ItemLike, label: str) -> Explained:
        """Return how an item relates to a label."""
        (query,) = _queries(as_items(item)[0])
        answer: Explained = self._call("POST", "/v1/explain", {"item": query, "label": label})
        return answer

    def info(self) -> ServiceInfo:
        """Return what is served, and its limits."""
        answer: ServiceInfo = self._call("GET", "/v1/model")
        return answer

    def labels(self, query: str = "", offset: int = 0, limit: int = 50) -> list[Label]:
        """Return labels whose id or texts contain `query`, a page at a time."""
        fields = urlencode({"q": query, "offset": offset, "limit": limit})
        answer: list[Label] = self._call("GET", f"/v1/labels?{fields}")["labels"]
        return answer

    def label(self, id: str) -> FullLabel:
        """Return one label, with its α and category."""
        answer: FullLabel = self._call("GET", f"/v1/labels/{quote(id, safe='')}")
        return answer

    def add_labels(self, items: Item | Mapping[str, Any] | Iterable[ItemLike] | Frame) -> None:
        """Add labels without training; of 64 labels, all are added or none."""
        bodies = ({"id": item.id, **_content(item)} for item in as_items(items)[0])
        list(self._over("/v1/labels", "labels", bodies, "added"))

    def remove_labels(self, ids: str | Sequence[str]) -> None:
        """Remove labels."""
        listed = [ids] if isinstance(ids, str) else list(ids)
        if listed:
            self._call("DELETE", "/v1/labels", {"ids": listed})

    def add_examples(
        self, items: ItemLike | Iterable[ItemLike] | Frame, labels: Sequence[Sequence[str]]
    ) -> None:
        """Add items with their labels to the memory; they vote at once."""
        queries = list(_queries(as_items(items)[0]))
        lists = [[ids] if isinstance(ids, str) else list(ids) for ids in labels]
        if len(queries) != len(lists):
            raise UsageError(f"{len(queries)} items, but {len(lists)} lists of labels; provide one per item")
        done = 0
        for some in _chunks(queries):
            body = {"items": some, "labels": lists[done : done + len(some)]}
            self._call("POST", "/v1/examples", body)
            done += len(some)

    def _over(
        self, path: str, field: str, bodies: Iterable[dict[str, Any]], answers: str,
        others: Mapping[str, Any] | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Post the bodies in as many calls as the limits ask for, and yield the answer to each."""
        for some in _chunks(bodies):
            parts = [some]
            while parts:
                part = parts.pop(0)
                try:
                    yield from self._call("POST", path, {field: part, **(others or {})})[answers]
                except ServiceError as error:
                    if error.status != 413 or len(part) == 1:
                        raise
                    parts = [part[: len(part) // 2], part[len(part) // 2 :], *parts]

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON answer; while the service is busy, retry after the time it names."""
        content = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + self.timeout
        while True:
            response = self._send(method, path, content, max(deadline - time.monotonic(), 0.001))
            if response.status < 400:
                return json.loads(response.content)
            wait = _retry_after(response)
            if response.status not in BUSY or wait is None or time.monotonic() + wait >= deadline:
                raise ServiceError(f"{self.address}: {_detail(response)}", response.status)
            time.sleep(wait)

    def _send(self, method: str, path: str, content: bytes | None, seconds: float) -> httpcore.Response:
        headers = [*self._headers, (b"Host", urlsplit(self.address).netloc.encode())]
        if content is not None:
            headers.append((b"Content-Type", b"application/json"))
        limits = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        try:
            return self._pool.request(
                method, self.address + path, headers=headers, content=content, extensions={"timeout": limits}
            )
        except (httpcore.TimeoutException, TimeoutError):
            raise ServiceError(f"{self.address} does not answer within {self.timeout:g} s") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            why = f"({str(error) or type(error).__name__}); is `mufin serve` running?"
            raise ServiceError(f"{self.address} cannot be reached {why}") from None


def _queries(items: Items) -> Iterator[dict[str, Any]]:
    """Yield items as the service reads them."""
    for item in items:
        by_id = item.id and not item.texts and not item.images
        yield {"id": item.id} if by_id else _content(item)


def _content(item: Item) -> dict[str, Any]:
    images = [base64.b64encode(_encoded(picture)).decode() for picture in item.images]  # type: ignore[arg-type]  # an Item has turned pixels into images
    return {"texts": list(item.texts), "images": images}


def _encoded(picture: Picture) -> bytes:
    """Return an image in a format that the service accepts."""
    encoded = read_bytes(picture)
    return read_bytes(open_picture(encoded)) if suffix_of(encoded) in (".tif", ".bin") else encoded


def _chunks(bodies: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Divide items by number, images and bytes."""
    some: list[dict[str, Any]] = []
    images = size = 0
    for body in bodies:
        more = body.get("images", [])
        length = sum(map(len, (*more, *body.get("texts", []))))
        full = len(some) == ITEMS_PER_CALL or images + len(more) > ITEMS_PER_CALL
        if some and (full or size + length > BYTES_PER_CALL):
            yield some
            some, images, size = [], 0, 0
        some.append(body)
        images, size = images + len(more), size + length
    if some:
        yield some


def _retry_after(response: httpcore.Response) -> float | None:
    found = next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
    return float(found) if found.isdigit() else None


def _detail(response: httpcore.Response) -> str:
    """Return the detail of an error, or the status if the response is not the service's."""
    try:
        return str(json.loads(response.content)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status}"
