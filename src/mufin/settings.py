"""The sections of settings; defaults are the paper's values, which are the preset `paper`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Epochs = Annotated[int, Field(ge=0)] | Literal["all"]
Layers = Annotated[int, Field(ge=0)] | Literal["all"]
Modalities = Literal["both", "text", "image"]


class Section(BaseModel):
    """A group of settings; unknown keys are errors, so that a typo never trains with defaults."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


class Text(Section):
    """E_T, the text encoder."""

    model: str = "sentence-transformers/msmarco-distilbert-base-v4"
    """A Hugging Face name, a folder, or `offline`: MiniLM-L6 from the extra of that name."""
    train_layers: Layers = "all"
    """How many last layers are trained: 0, n or "all"; the outputs of frozen ones are cached."""
    max_length: int = Field(32, ge=3, le=8192)
    """Tokens a text is cut to."""
    case: bool = False
    """Tell an encoder that is blind to capitals how a text is written, by a further token: lower, Title Case,
    Sentence case, UPPER. Needs all layers trained, and a vocabulary with spare tokens."""
    words: bool = False
    """Also read texts as bags of words and character n-grams: training points with similar words vote, and
    words shared with a label count."""
    pretrained_similarity: bool = False
    """Also compare titles and labels by the encoder before training, which makes it forget what this
    catalogue has no examples of. A second encoder to run, unless the first is frozen."""


class Vision(Section):
    """E_V, the image encoder."""

    model: str = "google/vit-base-patch32-224-in21k"
    """A Hugging Face name, a folder, or `offline`: EfficientNet-Lite0 from the extra of that name."""
    train_layers: Layers = 1
    """How many last layers, or stages of a CNN or Swin, are trained: 0, n or "all"; the outputs of frozen
    ones are cached."""
    size: int | None = Field(None, ge=16, le=2048)
    """Side of the square a picture is fitted into, in pixels; the encoder's own when not given."""
    stages: bool | Literal["every"] = False
    """Keep what earlier stages of the encoder saw (colours, textures): compatibility reads them, not its
    last map, `embed.stages` beside it; `every` layer, and how channels go together, for `embed.stages` alone.
    Only for `offline`, frozen."""


class Embed(Section):
    """The embedder E: projection to D, then self-attention A_S over the bag."""

    dim: int = Field(192, ge=1)
    """D."""
    projection: Literal["maxpool", "linear"] = "maxpool"
    """From an encoder's native width to D: adaptive max pooling (paper) or a learnt linear layer."""
    stages: bool = False
    """The projection of pictures also reads earlier stages, where `vision.stages` keeps them: the style of a
    drawing, beside what it shows."""
    attention: Literal["attention", "feedforward", "none", "sum"] = "attention"
    """A_S, or what stands in its place; `sum` makes a bag one row."""
    bag: Literal["attended", "raw"] = "attended"
    """Rows for A_C and the index: those of X̂¹ (paper), or of X̂⁰, so that A_S makes the vector alone."""
    fusion: Literal["late", "early"] = "late"
    """`early`: all texts and images of an item pass through the text encoder as one sequence, an image being
    one token, and the item is one vector; by VisualBERT's own visual embeddings where it is the encoder."""
    blocks: int = Field(1, ge=1)
    heads: int = Field(1, ge=1)
    """Of A_S and A_C; must divide `dim`."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On attention weights."""
    input_dropout: float = Field(0.0, ge=0, lt=1)
    """On an encoder's output, before the projection."""

    @model_validator(mode="after")
    def _fits(self) -> Embed:
        if self.dim % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide dim = {self.dim}")
        if self.bag == "raw" and self.attention in ("none", "sum"):
            raise ValueError(f'bag = "raw" needs an A_S for the vector, not attention = "{self.attention}"')
        return self


class Pretrain(Section):
    """Module I: Siamese training of E_T, E_V and A_S over mini-batches of labels."""

    epochs: int = Field(200, ge=0)
    batch: int = Field(1024, ge=1)
    lr: float = Field(2e-4, gt=0)
    encoder_lr: float | None = Field(None, gt=0)
    """For the encoders' own layers; `lr` when not given."""
    warmup: int = Field(1000, ge=0)
    """Steps; at most a fifth of all."""
    weight_decay: float = Field(0.01, ge=0)
    loss: Literal["margin", "softmax"] = "margin"
    """The paper's contrastive margin loss, or a decoupled softmax with a learnt temperature."""
    margin: float | Literal["dynamic"] = 0.2
    """γ, margin loss only; `dynamic` is clamp(s⁺ − s⁻, 0.1, 0.3) of each triple by the embeddings of the last
    refresh."""
    guard: float | None = None
    """A datapoint at least this similar is no negative of a label: most likely the pair is missing."""
    positives: int = Field(2, ge=1)
    """|P_l|."""
    negatives: int = Field(3, ge=1)
    """|N_l|, margin loss only."""
    hard_positives: bool = True
    hard_negatives: bool = True
    """The most similar datapoints of a batch, or random ones; margin loss only."""
    hard_similarity: float = 0.9
    """A positive more similar than this to its label is too easy to be drawn."""
    refresh: int = Field(1, ge=1)
    """Epochs between two judgements of which positives are hard."""
    sampled: int = Field(0, ge=0)
    """Labels drawn at random into each batch as further negatives, softmax loss only."""
    encoder_epochs: Epochs = "all"
    """How many last epochs train the encoders' own layers; the others cost as if they were frozen."""


class Retrieve(Section):
    """Module II: the index over label descriptors, and the shortlists R_i."""

    entries: list[Literal["bag", "vector", "centroid"]] = Field(["bag", "centroid"], min_length=1)
    """What a label puts into the index: each row of its bag, its vector ẑ, its centroid μ."""
    shortlist: int = Field(100, ge=1)
    search: Literal["auto", "exact", "approximate"] = "auto"


class Rank(Section):
    """The ranker: cross-attention A_C and the classifiers w_l."""

    cross: Literal["attention", "concat", "none"] = "attention"
    """A_C, the paper's ConCat variant, or x̂² = x̂¹."""
    blocks: int = Field(1, ge=1)
    alpha: Literal["learnt", "one"] = "learnt"
    """`one` is the variant MUFIN (α = 1): w_l = ẑ_l, no classifiers."""
    start: Literal["random", "centroid"] = "random"
    """η begins at random (paper) or as the centroid of the label's datapoints."""
    beta: Annotated[float, Field(ge=0, le=1)] | Literal["learnt"] = 0.7
    """s = β c + (1 − β) a; `learnt` fits a mixture of all parts of the score on the validation points."""
    compatibility: bool = False
    """Score labels without training also by which content goes with which; beyond the paper."""


class Memory(Section):
    """Training points as keys that vote for their labels; beyond the paper, off in its preset."""

    neighbours: int = Field(0, ge=0)
    """How many of the nearest training points vote; 0 for no memory."""
    temperature: float = Field(0.05, gt=0)
    """Votes are softmax(similarity / temperature)."""
    word_temperature: float = Field(0.1, gt=0)
    """The same for points found by their words, see `text.words`."""
    per_label: int = Field(1000, ge=1)
    """Points are remembered until each label has this many."""
    title_labels: bool = False
    """Remembered points also vote for labels that their titles name word for word, where the catalogue leaves
    such labels out of its lists; needs `text.words`."""
    loss: float = Field(0.0, ge=0)
    """Weight in Module IV of −log of the votes that a point's labels get from the other points."""


class Finetune(Section):
    """Module IV: everything trained over mini-batches of datapoints."""

    epochs: int = Field(20, ge=0)
    batch: int = Field(200, ge=1)
    lr: float = Field(5e-5, gt=0)
    encoder_lr: float | None = Field(None, gt=0)
    """For the encoders' own layers; `lr` when not given."""
    classifier_lr: float | None = Field(None, gt=0)
    """For η and α; `lr` when not given."""
    warmup: int = Field(1000, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    loss: Literal["cosine", "softmax"] = "cosine"
    """The paper's cosine embedding loss, or a decoupled softmax with a learnt temperature."""
    margin: float = 0.5
    """γ, cosine loss only."""
    positives: int = Field(2, ge=1)
    """|S_i|."""
    negatives: int = Field(12, ge=0)
    """|T_i|, drawn from the negatives of R_i."""
    sampled: int = Field(0, ge=0)
    """Labels drawn at random into each batch as further negatives, softmax loss only."""
    encoder_epochs: Epochs = "all"
    """How many last epochs train the encoders' own layers; 0 is the paper's lite variant."""
    label_encoders: bool = True
    """Labels train the encoders too; else datapoints alone do, and labels are encoded once an epoch."""
    refresh: int = Field(0, ge=0)
    """Epochs between two searches for the shortlists R_i; 0: once, before the first (paper)."""
    chunk: int = Field(0, ge=0)
    """Datapoints or labels embedded at a time, gradients being cached; 0: all of a batch at once."""
    guard: float | None = None
    """A label of R_i at least this similar is no negative: most likely it is missing from the data."""
    batches: Literal["random", "clustered"] = "random"
    """Datapoints of a batch: any, or near ones together, so that their labels are hard negatives."""


class Sets(Section):
    """How sets of items, such as outfits, become datapoints; ignored where a split is trained on."""

    points: Literal["one", "each"] = "one"
    """One point per set, without its `blank` (paper), or `each` item of a set left out in turn."""


class Run(Section):
    """How, not what."""

    device: str = "auto"
    validation: float = Field(0.02, ge=0, lt=1)
    """Share of training points held out (at most 1,000) for the P@1 shown and for a learnt mixture."""
    batches: int | None = Field(None, ge=1)
    """At most so many batches an epoch: a dry run."""
    tensorboard: bool = False
    pictures: bool = True
    """Keep small label pictures in the model folder."""
