"""The bodies of requests, their limits, and the settings of the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mufin.serve.problem import Problem


@dataclass(frozen=True)
class Limits:
    """Sizes above which a request is refused, before anything is decoded if possible."""

    body_bytes: int = 16 << 20  # the largest image in base64, and some texts
    bodies_bytes: int = 64 << 20  # in memory at a time, of all bodies over 64 KiB
    values: int = 100_000  # in a JSON body
    items: int = 64  # per call
    texts: int = 32  # per item
    text_chars: int = 20_000
    images: int = 16  # per item
    images_in_all: int = 64  # per call: what the model processes in about a second
    image_bytes: int = 10 << 20
    image_pixels: int = 40_000_000  # by the header of the file: a bomb is refused unopened
    pixels_in_all: int = 160_000_000  # per call: what is decoded in a few seconds
    id_chars: int = 512
    ids: int = 10_000  # in allow, in deny, among the labels of an example
    k: int = 1000
    cost: int = 1024  # per call, in short texts: what the model computes in two or three seconds
    item_cost: int = 192  # per item: an item is computed in one go while others wait
    page: int = 500  # labels or items of a list


LIMITS = Limits()


@dataclass(frozen=True)
class Settings:
    """Settings of the service."""

    window: float = 0.004  # maximum batching delay in seconds
    batch: int = 32  # maximum cost of a batch; requests that cost more are long
    queue: int = 256  # maximum cost of small requests that wait; beyond it, 429
    deadline: float = 10.0  # seconds after which a request is given up
    token: str | None = None  # required to write; None: everybody on this machine may write
    writable: bool = True
    local: bool = True  # answer only to names of this machine
    threads: int = 1  # that compute, one batch on one core each
    watch: bool = False  # reload when the model folder changes


# Cost is measured in short texts, each of which takes about 2 ms on one core.
IMAGE = 3  # cost of an image
CHARS_PER_TOKEN = 4
TOKENS = 16  # of a short text
CHARS = 1000  # tokenized in the time of a short text
HITS = 250  # ranked and written in that time
SLICE = 16  # cost that is computed at a time for a long request


def cost_of(texts: Sequence[str], images: int, tokens: int, k: int = 0) -> int:
    """Return the cost of an item for a model that reads the first `tokens` tokens of a text.

    >>> cost_of(["oak desk"], 0, 128), cost_of(["oak desk"], 1, 128), cost_of(["word " * 200], 0, 128)
    (1, 4, 10)
    """
    read = (1 + min(len(text) // CHARS_PER_TOKEN, tokens) // TOKENS + len(text) // CHARS for text in texts)
    return max(1, sum(read) + IMAGE * images + k // HITS)


def check_cost(costs: Sequence[int], place: str) -> None:
    """Refuse a call that costs too much; `place` says where its items are: "items.{}"."""
    for number, cost in enumerate(costs):
        if cost > LIMITS.item_cost:
            most = f"at most {LIMITS.item_cost} are allowed per item; send fewer or shorter texts"
            raise Problem(413, f"{place.format(number)} costs {cost:,} units; {most}")
    if (total := sum(costs)) > LIMITS.cost:
        most = f"at most {LIMITS.cost:,} are allowed per call; send fewer items at a time"
        raise Problem(413, f"{place.format(f'0 to {len(costs) - 1}')} cost {total:,} units; {most}")


def slices(costs: Sequence[int], most: int = SLICE) -> list[slice]:
    """Split items into runs of at most this cost; an item that costs more is a run of its own.

    >>> slices([1, 1, 5, 1, 1], 3)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    found, first, total = [], 0, 0
    for number, cost in enumerate(costs):
        if number > first and total + cost > most:
            found.append(slice(first, number))
            first, total = number, 0
        total += cost
    return [*found, slice(first, len(costs))]


Id = Annotated[str, Field(min_length=1, max_length=LIMITS.id_chars)]
Ids = Annotated[list[Id], Field(max_length=LIMITS.ids)]
SomeIds = Annotated[list[Id], Field(min_length=1, max_length=LIMITS.ids)]
Text = Annotated[str, Field(max_length=LIMITS.text_chars)]
Texts = Annotated[list[Text], Field(max_length=LIMITS.texts, examples=[["oak desk"]])]
Image = Annotated[
    str,
    Field(
        max_length=LIMITS.image_bytes * 4 // 3 + 4,
        description="A PNG, JPEG, WebP or GIF file in base64",
        json_schema_extra={"contentEncoding": "base64"},
    ),
]
Images = Annotated[list[Image], Field(max_length=LIMITS.images)]


class Body(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryBody(Body):
    """An item to find labels for: its texts and images, or the id of an item of the catalogue."""

    id: Id | None = None
    texts: Texts = []
    images: Images = []

    @model_validator(mode="after")
    def _one_way(self) -> QueryBody:
        if self.id is not None and (self.texts or self.images):
            raise ValueError("send an id of the catalogue, or texts and images, not both")
        if self.id is None and not self.images and not any(text.strip() for text in self.texts):
            raise ValueError("the item is empty; send a text, an image or an id of the catalogue")
        return self


class RecommendBody(Body):
    """Items, and how many labels to recommend for each."""

    items: Annotated[list[QueryBody], Field(min_length=1, max_length=LIMITS.items)]
    k: Annotated[int, Field(ge=1, le=LIMITS.k)] = 10
    allow: Ids | None = None
    deny: Ids = []
    explain: bool = False
    min_probability: Annotated[float, Field(ge=0, le=1)] = 0.0


class ExplainBody(Body):
    """An item and one label."""

    item: QueryBody
    label: Id


class EmbedBody(Body):
    """Items to embed."""

    items: Annotated[list[QueryBody], Field(min_length=1, max_length=LIMITS.items)]


class LabelBody(Body):
    """A new label."""

    id: Id
    texts: Texts = []
    images: Images = []


class LabelsBody(Body):
    """New labels."""

    labels: Annotated[list[LabelBody], Field(min_length=1, max_length=LIMITS.items)]


class IdsBody(Body):
    """Labels to remove."""

    ids: SomeIds


class ExampleBody(Body):
    """An item to remember."""

    texts: Texts = []
    images: Images = []


class ExamplesBody(Body):
    """Items to remember, and the labels of each."""

    items: Annotated[list[ExampleBody], Field(min_length=1, max_length=LIMITS.items)]
    labels: Annotated[list[SomeIds], Field(min_length=1, max_length=LIMITS.items)]
