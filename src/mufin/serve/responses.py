"""The contents of answers: models that every answer is checked against, and examples for the schema."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Hit(Answer):
    """A recommended label."""

    label: str
    text: str = Field(description="Its first text")
    score: float = Field(description="Comparable within one query only")
    probability: float = Field(description="That the label is relevant; calibrated on held-out points")
    parts: dict[str, float] = Field(description="What each signal adds to the score; they sum to it")
    evidence: dict[str, float] = Field(description="What each signal measured, by column")
    images: int
    relevant: bool | None = Field(description="Whether it is a known label of the item; null if unknown")


class TextDescriptor(Answer):
    """A text that the model reads."""

    kind: Literal["text"]
    text: str


class ImageDescriptor(Answer):
    """An image that the model reads."""

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
    model: str = Field(description="The version of the model that answered; it changes with every write")


class Embedded(Answer):
    """The answer to /v1/embed."""

    vectors: list[list[float]] = Field(description="One per item, of length 1")
    took_ms: float
    model: str


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
    """How one item relates to one label."""

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


class Reloaded(Answer):
    """The model that is served now."""

    model: str
    labels: int


class Map(Answer):
    """All labels as points of a plane, by column."""

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
    """What is served, and its limits."""

    name: str
    model: str
    labels: int
    living: int
    memory: int = Field(description="Remembered training points")
    modalities: Literal["text+image", "text", "image"]
    own_items: bool
    adapts: bool
    signals: dict[str, str] = Field(description="The parts of a score, and what each means")
    categories: bool
    catalogue: bool
    splits: list[str]
    writable: bool
    needs_token: bool
    k_max: int
    limits: dict[str, int | float]


class Health(Answer):
    """The process is alive."""

    status: Literal["ok"]


class Ready(Answer):
    """The model is loaded."""

    status: Literal["ready"]
    model: str


HIT = {
    "label": "desk-1", "text": "walnut desk", "score": 8.31, "probability": 0.74,
    "parts": {"similarity": 0.9, "classifier": 6.2, "rarity": 1.21},
    "evidence": {"similarity": 0.72, "classifier": 0.53}, "images": 1, "relevant": None,
}  # fmt: skip
LABEL = {
    "id": "desk-1", "text": "walnut desk", "texts": ["walnut desk"], "images": 1, "frequency": 12,
    "added": False,
}  # fmt: skip
ITEM = {
    "id": "sku-7", "text": "oak desk", "texts": ["oak desk"], "images": 1, "split": "test",
    "labels": [{"id": "desk-1", "text": "walnut desk"}],
}  # fmt: skip
NEAR = {"label": "desk-2", "text": "oak desk", "similarity": 0.9, "images": 0}
RECOMMEND = {"results": [{"hits": [HIT]}], "took_ms": 14.2, "model": "c837a8feeb1d"}
EMBED = {"vectors": [[0.6, -0.8]], "took_ms": 5.2, "model": "c837a8feeb1d"}
EXPLAIN = {
    "query": [{"kind": "text", "text": "oak desk"}],
    "label": [
        {"kind": "text", "text": "walnut desk"},
        {"kind": "image", "n": 0, "url": "/v1/labels/desk-1/image/0"},
    ],
    "attention": [[0.7, 0.3]], "kind": "cross-attention", "alpha": 0.41, "frequency": 12, "nearest": [NEAR],
    "examples": [{"id": "sku-7", "text": "oak desk", "images": 1, "similarity": 0.62}],
}  # fmt: skip
LABELS = {"total": 1, "labels": [LABEL]}
ITEMS = {"total": 1, "items": [ITEM]}
ADDED = {"added": ["desk-1"], "model": "779674242734"}
REMOVED = {"removed": ["desk-1"], "model": "c837a8feeb1d"}
RELOADED = {"model": "c837a8feeb1d", "labels": 2440}
EXAMPLES = {"added": 1, "model": "779674242734"}
MAP = {
    "label": ["desk-1"], "text": ["walnut desk"], "x": [0.12], "y": [-0.4], "group": [0],
    "groups": ["desk, table"], "how": "t-SNE",
}  # fmt: skip


def shown(
    example: dict[str, Any], status: int = 200, description: str = "The answer"
) -> dict[int | str, Any]:
    """Return the documented answer of an operation."""
    return {status: {"description": description, "content": {"application/json": {"example": example}}}}


def image() -> dict[int | str, Any]:
    """Return the documented answer of an address of images."""
    schema = {"type": "string", "format": "binary"}
    formats = ("png", "jpeg", "webp")
    found = {"description": "The image", "content": {f"image/{name}": {"schema": schema} for name in formats}}
    return {200: found, 304: {"description": "The client has it already"}}
