"""What answers hold: the models behind the OpenAPI schema, which every answer is checked against."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """A JSON object without surprises."""

    model_config = ConfigDict(extra="forbid")


class Hit(Answer):
    """A recommended label."""

    label: str
    text: str = Field(description="Its first text")
    score: float = Field(description="Compare it within one query only")
    probability: float = Field(description="That the label is relevant, calibrated on held-out points")
    parts: dict[str, float] = Field(description="What each signal adds to the score; they sum to it")
    evidence: dict[str, float] = Field(description="What each signal measured, column by column")
    images: int
    relevant: bool | None = Field(description="Whether it is a known label of the item; null if unknown")


class TextDescriptor(Answer):
    """A text that the model looks at."""

    kind: Literal["text"]
    text: str


class ImageDescriptor(Answer):
    """An image that the model looks at."""

    kind: Literal["image"]
    n: int
    url: str | None = None


Descriptor = TextDescriptor | ImageDescriptor


class Descriptors(Answer):
    """The texts and images of a query, in the order of its bag."""

    descriptors: list[Descriptor]


class Result(Answer):
    """The hits of one item, best first."""

    hits: list[Hit]
    explain: Descriptors | None = None


class Recommended(Answer):
    """The answer to /v1/recommend."""

    results: list[Result]
    took_ms: float
    model: str = Field(description="The state of the model that answered; it changes with every write")


class Near(Answer):
    """A label near another one."""

    label: str
    text: str
    similarity: float
    images: int


class Example(Answer):
    """A training item of a label."""

    id: str
    text: str
    images: int
    similarity: float


class Explained(Answer):
    """How one item looks at one label."""

    query: list[Descriptor]
    label: list[Descriptor]
    attention: list[list[float]] = Field(description="A row per descriptor of the item")
    kind: Literal["cross-attention", "similarity"]
    alpha: float
    frequency: int
    nearest: list[Near]
    examples: list[Example]


class Label(Answer):
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


class Labels(Answer):
    """A page of labels."""

    total: int
    labels: list[Label]


class Named(Answer):
    """A label of an item."""

    id: str
    text: str


class Item(Answer):
    """An item of the catalogue."""

    id: str
    text: str
    texts: list[str]
    images: int
    split: str | None
    labels: list[Named]


class Items(Answer):
    """A page of items."""

    total: int
    items: list[Item]


class AddedLabels(Answer):
    """Labels that were added."""

    added: list[str]
    model: str


class AddedExamples(Answer):
    """How many examples were added."""

    added: int
    model: str


class Removed(Answer):
    """Labels that were removed."""

    removed: list[str]
    model: str


class Map(Answer):
    """All labels as points of a plane, column by column."""

    label: list[str]
    text: list[str]
    x: list[float]
    y: list[float]
    group: list[int]
    groups: list[str]
    how: str


class Computing(Answer):
    """The map is not ready yet."""

    state: Literal["computing"]
    progress: float


class Model(Answer):
    """What is served, and what may be asked of it."""

    name: str
    model: str
    labels: int
    living: int
    memory: int = Field(description="Remembered training points")
    modalities: Literal["text+image", "text", "image"]
    own_items: bool
    adapts: bool
    signals: dict[str, str] = Field(description="The parts of a score, and what each says")
    categories: bool
    catalogue: bool
    splits: list[str]
    writable: bool
    needs_token: bool
    k_max: int
    limits: dict[str, int | float]


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]


class Ready(Answer):
    """The model is loaded."""

    status: Literal["ready"]
    model: str
