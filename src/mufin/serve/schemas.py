"""What requests contain; unknown fields are errors."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mufin.serve.limits import LIMITS

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
