"""What a request may ask for at most, and how the service answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes above which a request is refused, before anything is decoded where that is possible."""

    body_bytes: int = 16 << 20  # the largest image in base64, and some texts
    bodies_bytes: int = 64 << 20  # held at a time, of all bodies over 64 kB
    values: int = 100_000  # in a JSON body: more are not parsed
    items: int = 64  # in one call
    texts: int = 32  # of an item
    text_chars: int = 20_000
    images: int = 16  # of an item
    images_in_all: int = 64  # of a call: what the model looks at in about a second
    image_bytes: int = 10 << 20
    image_pixels: int = 40_000_000  # by the header of the file: a bomb is refused unopened
    pixels_in_all: int = 160_000_000  # of a call: what is decoded in a few seconds
    id_chars: int = 512
    ids: int = 10_000  # in allow, in deny, among the labels of an example
    k: int = 1000
    cost: int = 1024  # of a call, in short texts: what the model computes in two or three seconds
    item_cost: int = 192  # of an item: an item is computed in one go, and others wait for it
    page: int = 500  # labels or items of a list


LIMITS = Limits()


@dataclass(frozen=True)
class Settings:
    """How the service answers."""

    window: float = 0.004  # seconds that a batch waits for company at most
    batch: int = 32  # cost of the items that share a forward pass; costlier requests are long
    queue: int = 256  # cost of small requests that wait at most; beyond, 429
    deadline: float = 10.0  # seconds until a request is given up
    token: str | None = None  # who knows it may write; None: everybody on this machine may
    writable: bool = True
    local: bool = True  # only names of this machine are answered: a foreign name is an attack on it
    threads: int = 1  # that compute, each a batch on one core
