"""Define the sections of settings. Defaults are the paper's values, which are the preset `paper`."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Epochs = Annotated[int, Field(ge=0)] | Literal["all"]
Layers = Annotated[int, Field(ge=0)] | Literal["all"]
Modalities = Literal["both", "text", "image"]


class Section(BaseModel):
    """A group of settings. Unknown keys are errors, so that a typo never trains with defaults."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, allow_inf_nan=False)


class Text(Section):
    """E_T, the text encoder."""

    model: str = "sentence-transformers/msmarco-distilbert-base-v4"
    """Hugging Face name, folder, or `offline` for the MiniLM-L6 in the `offline` extra."""
    train_layers: Layers = "all"
    """Number of final layers to train: 0, n or "all". Outputs of frozen layers are cached."""
    max_length: int = Field(32, ge=3, le=8192)
    """Maximum number of tokens per text; longer texts are truncated."""
    words: bool = False
    """Also represent texts as bags of words and character n-grams: training points with similar words vote,
    and words shared with a label count as evidence. Beyond the paper."""
    linear: bool = False
    """Also train a linear classifier of words for each label on the remembered points, if at least 1,000 have
    texts. Needs `text.words` and `memory.neighbours`. Beyond the paper."""
    pretrained_similarity: bool = False
    """Also compare titles and labels with the encoder as it was before training, since training makes it
    forget words that are rare in this catalogue. Runs a second encoder unless the first is frozen. Beyond the
    paper."""


class Vision(Section):
    """E_V, the image encoder."""

    model: str = "google/vit-base-patch32-224-in21k"
    """Hugging Face name, folder, or `offline` for the EfficientNet-Lite0 in the `offline` extra."""
    train_layers: Layers = 1
    """Number of final layers (stages of a CNN or Swin) to train: 0, n or "all". Outputs of frozen layers are
    cached."""
    size: int | None = Field(None, ge=16, le=2048)
    """Side in pixels of the square that images are resized to fit. Default: the encoder's own size. A
    preset's size belongs to its encoder, so another `vision.model` unsets it."""
    stages: bool | Literal["every"] = False
    """Also keep features of earlier stages of the encoder (colours, textures). Compatibility reads them
    instead of the last feature map, `embed.stages` in addition to it. `every` adds all other layers and
    channel correlations, for `embed.stages` only. Needs a frozen `offline` encoder. Beyond the paper."""


class Embed(Section):
    """The embedder E: projection to D, then self-attention A_S over the bag."""

    dim: int = Field(192, ge=1)
    """D, the embedding dimension."""
    projection: Literal["maxpool", "linear"] = "maxpool"
    """Projection from the encoder's width to D: adaptive max pooling (paper) or a learnt linear layer."""
    stages: bool = False
    """Also project the earlier stages that `vision.stages` keeps, so that embeddings capture the style of an
    image as well as its content. Beyond the paper."""
    attention: Literal["attention", "feedforward", "none", "sum"] = "attention"
    """A_S (paper) or its replacement. `sum` adds the rows of a bag into one."""
    bag: Literal["attended", "raw"] = "attended"
    """Rows for A_C and the index: those of X̂¹ (paper), or of X̂⁰, so that A_S affects only the vector."""
    fusion: Literal["late", "early"] = "late"
    """`late` (paper) encodes each text and image separately. `early` passes all of an item's texts and images
    (one token per image) through the text encoder as one sequence, and the item becomes one vector.
    VisualBERT uses its own visual embeddings."""
    blocks: int = Field(1, ge=1)
    """Number of attention blocks in A_S."""
    heads: int = Field(1, ge=1)
    """Number of attention heads in A_S and A_C; must divide `dim`."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout rate on attention weights."""
    input_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout rate on encoder outputs, before the projection."""

    @model_validator(mode="after")
    def _check_combination(self) -> Embed:
        if self.dim % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide dim = {self.dim}")
        if self.bag == "raw" and self.attention in ("none", "sum"):
            raise ValueError(f'bag = "raw" needs an A_S for the vector, not attention = "{self.attention}"')
        return self


class Pretrain(Section):
    """Module I: Siamese training of E_T, E_V and A_S over mini-batches of labels."""

    epochs: int = Field(200, ge=0)
    """Number of epochs."""
    batch: int = Field(1024, ge=1)
    """Labels per mini-batch."""
    lr: float = Field(2e-4, gt=0)
    """Peak learning rate."""
    encoder_lr: float | None = Field(None, gt=0)
    """Peak learning rate of the encoders' own layers. Default: `lr`."""
    warmup: int = Field(1000, ge=0)
    """Warm-up steps, at most a fifth of all steps."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW."""
    loss: Literal["margin", "softmax"] = "margin"
    """The paper's contrastive margin loss, or a decoupled softmax with a learnt temperature."""
    margin: float | Literal["dynamic"] = 0.2
    """γ, margin loss only. `dynamic` is clamp(s⁺ − s⁻, 0.1, 0.3) per triple, with the embeddings of the last
    refresh."""
    guard: float | None = None
    """Never use a datapoint at least this similar to a label as its negative: the pair is probably missing
    from the data. Default: no limit (paper)."""
    positives: int = Field(2, ge=1)
    """|P_l|, positives per label."""
    negatives: int = Field(3, ge=1)
    """|N_l|, negatives per label; margin loss only."""
    hard_positives: bool = True
    """Draw positives only from those no more similar than `hard_similarity`, rather than from all."""
    hard_negatives: bool = True
    """Use the most similar datapoints of the batch as negatives, not random ones; margin loss only."""
    hard_similarity: float = 0.9
    """Maximum cosine similarity of a hard positive to its label."""
    refresh: int = Field(1, ge=1)
    """Epochs between refreshes of the embeddings that decide which positives are hard."""
    sampled: int = Field(0, ge=0)
    """Random labels added to each batch as further negatives; softmax loss only."""
    encoder_epochs: Epochs = "all"
    """Number of final epochs that train the encoders' own layers. Earlier epochs are as cheap as with frozen
    encoders."""


class Retrieve(Section):
    """Module II: the index over label descriptors, and the shortlists R_i."""

    entries: list[Literal["bag", "vector", "centroid"]] = Field(["bag", "centroid"], min_length=1)
    """Index entries of a label: each row of its bag, its vector ẑ, its centroid μ."""
    shortlist: int = Field(100, ge=1)
    """|R_i|, labels per shortlist."""
    search: Literal["auto", "exact", "approximate", "milvus"] = "auto"
    """Nearest-neighbour search. `auto` is exact on GPUs and for up to 50,000 entries on CPUs, approximate
    beyond. `milvus`: a saved model searches in a Milvus collection; until it is saved, as with `auto`."""
    uri: str | None = None
    """Milvus: the address of a server, as in http://host:19530, or a file that ends in .db, for one process.
    MUFIN_MILVUS_URI replaces it at run time."""
    collection: str = Field("mufin", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")
    """Milvus: how the name of the collection begins; each model has one of its own."""

    @model_validator(mode="after")
    def _check_address(self) -> Retrieve:
        if self.search == "milvus" and self.uri is None:
            raise ValueError('search = "milvus" needs retrieve.uri, a server\'s address or a .db file')
        if self.uri is not None and not re.fullmatch(r"https?://[^@\s]+|[^@:\s][^@:]*\.db", self.uri):
            raise ValueError(
                "uri must be http://host:port, with the password in MUFIN_MILVUS_TOKEN, or a .db file"
            )
        return self


class Rank(Section):
    """The ranker: cross-attention A_C and the classifiers w_l."""

    cross: Literal["attention", "concat", "none"] = "attention"
    """A_C, the paper's ConCat variant, or x̂² = x̂¹."""
    blocks: int = Field(1, ge=1)
    """Number of attention blocks in A_C."""
    alpha: Literal["learnt", "one"] = "learnt"
    """`one` is the paper's variant MUFIN (α = 1): w_l = ẑ_l, without learnt classifiers."""
    start: Literal["random", "centroid"] = "random"
    """Initial η: random (paper), or the centroid of the label's datapoints."""
    beta: Annotated[float, Field(ge=0, le=1)] | Literal["learnt"] = 0.7
    """β in s = β c + (1 − β) a. `learnt` fits a mixture of all signals on the held-out points."""
    compatibility: bool = False
    """Also score untrained labels by how well their content goes with the query's. Beyond the paper."""


class Memory(Section):
    """Training points as keys that vote for their labels. Beyond the paper, off in its preset."""

    neighbours: int = Field(0, ge=0)
    """Number of nearest training points that vote; 0 turns the memory off."""
    temperature: float = Field(0.05, gt=0)
    """Temperature of the votes, softmax(similarity / temperature)."""
    word_temperature: float = Field(0.1, gt=0)
    """Temperature of the votes of points found by their words, see `text.words`."""
    per_label: int = Field(1000, ge=1)
    """Points to remember per label: points are added until each label has this many."""
    title_labels: bool = False
    """Let remembered points also vote for labels that their titles contain word for word, if the catalogue
    omits such labels from its lists. Needs `text.words`."""
    loss: float = Field(0.0, ge=0)
    """Weight in Module IV of −log of the votes for a point's labels from all other points."""


class Finetune(Section):
    """Module IV: joint training of all parts over mini-batches of datapoints."""

    epochs: int = Field(20, ge=0)
    """Number of epochs; the paper uses 10 on Polyvore."""
    batch: int = Field(200, ge=1)
    """Datapoints per mini-batch."""
    lr: float = Field(5e-5, gt=0)
    """Peak learning rate."""
    encoder_lr: float | None = Field(None, gt=0)
    """Peak learning rate of the encoders' own layers. Default: `lr`."""
    classifier_lr: float | None = Field(None, gt=0)
    """Peak learning rate of η and α. Default: `lr`."""
    warmup: int = Field(1000, ge=0)
    """Warm-up steps, at most a fifth of all steps."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW; η and α have none."""
    loss: Literal["cosine", "softmax"] = "cosine"
    """The paper's cosine embedding loss, or a decoupled softmax with a learnt temperature."""
    margin: float = 0.5
    """γ, cosine loss only."""
    positives: int = Field(2, ge=1)
    """|S_i|, positives per datapoint."""
    negatives: int = Field(12, ge=0)
    """|T_i|, negatives per datapoint, drawn from the irrelevant labels of R_i."""
    sampled: int = Field(0, ge=0)
    """Random labels added to each batch as further negatives; softmax loss only."""
    encoder_epochs: Epochs = "all"
    """Number of final epochs that train the encoders' own layers; 0 is the paper's lite variant."""
    label_encoders: bool = True
    """Also train the encoders through labels. Otherwise only datapoints train them, and labels are encoded
    once per epoch."""
    refresh: int = Field(0, ge=0)
    """Epochs between updates of the shortlists R_i; 0 computes them once, before the first epoch (paper)."""
    chunk: int = Field(0, ge=0)
    """Datapoints or labels to embed at a time, with gradient caching; 0 embeds a whole batch at once."""
    guard: float | None = None
    """Never use a label of R_i at least this similar as a negative: it is probably missing from the data.
    Default: no limit (paper)."""
    batches: Literal["random", "clustered"] = "random"
    """How to form batches: at random, or from nearby datapoints, whose labels are hard negatives for each
    other."""


class Sets(Section):
    """How sets of items, such as outfits, become datapoints. Ignored when training on a split."""

    points: Literal["one", "each"] = "one"
    """One point per set, without its `blank` (paper), or one per item, leaving out `each` item in turn."""


class Run(Section):
    """How to run training; nothing here defines the model itself."""

    device: str = "auto"
    """Torch device for training; `auto` uses a GPU if there is one."""
    validation: float = Field(0.02, ge=0, lt=1)
    """Fraction of training points to hold out (at most 1,000 points) for the reported P@1, a learnt mixture
    and the calibration of probabilities."""
    batches: int | None = Field(None, ge=1)
    """Maximum number of batches per epoch, for a dry run."""
    patience: int | None = Field(None, ge=1)
    """End a module early after this many validations without a better P@1 (there are about ten per module).
    Default: never."""
    checkpoint: float = Field(5.0, ge=0)
    """Minutes between checkpoints, from which `mufin train --resume` goes on; each module also ends with one.
    They take at most 3 % of the time, unless this is 0: then every step ends with one."""
    tensorboard: bool = False
    """Write logs for TensorBoard to the run folder."""
    pictures: bool = True
    """Keep thumbnails of label images in the model folder."""
