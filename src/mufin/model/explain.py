"""Explain how an item relates to a label: parts of the score, attention, nearest labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from mufin.data import html
from mufin.data.items import Items
from mufin.encode.attention import CrossAttention
from mufin.encode.bag import Bag
from mufin.errors import UsageError
from mufin.model.hits import Hit
from mufin.progress import count
from mufin.rank.ranker import Ranker
from mufin.signals.evidence import unique

if TYPE_CHECKING:
    from mufin.model.mufin import Mufin

Kind = Literal["cross-attention", "similarity"]
NEAREST = 8


@dataclass(frozen=True)
class Neighbour:
    """A label near another one."""

    label: str
    text: str
    similarity: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """How an item relates to a label."""

    hit: Hit  # the label with its score, probability, parts and evidence
    rank: int  # among the candidates, from 1
    item: tuple[str, ...]  # descriptors of the item, m: its texts, then "image 1", …
    label: tuple[str, ...]  # descriptors of the label, n
    attention: npt.NDArray[np.float32]  # (m, n)
    kind: Kind  # of attention: weights of A_C, whose rows sum to 1, or cosines if the model has no A_C
    alpha: float  # α; near 1, the classifier is hardly trained
    frequency: int  # training points with the label
    nearest: tuple[Neighbour, ...]  # labels nearest to this one

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        nearest = [vars(one) for one in self.nearest]
        changed = {"hit": self.hit.as_dict(), "attention": self.attention.tolist(), "nearest": nearest}
        return vars(self) | changed

    def __repr__(self) -> str:
        parts = ", ".join(f"{name} {part:+.2f}" for name, part in self.hit.parts.items())
        near = ", ".join(one.label for one in self.nearest[:3])
        lines = [f"rank {self.rank}: {self.hit}", f"score {self.hit.score:.2f} = {parts}"]
        return "\n".join(
            [*lines, f"in {count(self.frequency, 'training point')}; near {near or 'no other label'}"]
        )

    def _repr_html_(self) -> str:
        rows = [
            [html.text(name), *(f"{weight:.2f}" for weight in weights[: html.ROWS])]
            for name, weights in zip(self.item[: html.ROWS], self.attention.tolist(), strict=False)
        ]
        return html.table([self.kind, *self.label[: html.ROWS]], rows, len(self.item), repr(self))


@torch.no_grad()
def explain(model: Mufin, items: Items, label: str) -> Explanation:
    """Explain the score of a label for the only one of these items."""
    features = model.features(items)
    if len(items) != 1:
        raise UsageError(f"{len(items)} items; explain one at a time")
    if not features.sizes[0]:
        raise UsageError(model.without_content(items, 0))
    (row,) = model.labels.rows([label]).tolist()
    query = model.query(features)
    device = query.bags.rows.device
    x = query.bags.take(torch.zeros(1, dtype=torch.int64, device=device))
    z = model.labels.bags.take(torch.tensor([row], device=device))
    own = torch.tensor([[row]], device=device)
    candidates = unique([model.candidates(query, model.own_labels(items))[0], own])
    ranked = model.top_k(candidates, model.evidence(query, candidates), candidates.shape[1])
    place = int((ranked.labels[0] == row).nonzero()[0, 0])
    kind, weights = attention(model.ranker, x, z)
    return Explanation(
        hit=model.hits(ranked)[0][place],
        rank=place + 1,
        item=_named(_texts(items.only(model.config.modalities), 0), int(x.mask.sum())),
        label=_named(label_texts(model, row), int(z.mask.sum())),
        attention=weights[0][:, z.mask[0]].float().cpu().numpy(),
        kind=kind,
        alpha=float(model.labels.alpha[row]),
        frequency=int(model.labels.frequency[row]),
        nearest=tuple(one for _, one in nearest(model, z.vector(), row)),
    )


def attention(ranker: Ranker, x: Bag, z: Bag) -> tuple[Kind, Tensor]:
    """Return the weights of A_C, (1, m, n), or cosines of the rows if the model has no cross-attention."""
    match ranker.cross_attention:
        case CrossAttention() as cross:
            return "cross-attention", cross.weights(x, z)
        case _:
            cosines = F.normalize(x.values, dim=-1) @ F.normalize(z.values, dim=-1).transpose(1, 2)
            return "similarity", cosines


def label_texts(model: Mufin, row: int) -> list[str]:
    """Return the texts of a label that are in its bag, which has texts first, then images."""
    items = model.labels.items
    if model.config.modalities == "image" and (model.labels.own_items or len(items.pictures.row(row))):
        return []
    return _texts(items, row)


def nearest(model: Mufin, vector: Tensor, row: int) -> list[tuple[int, Neighbour]]:
    """Return the labels with the entries nearest to ẑ and their rows, without the label itself."""
    found = model.index.search(vector, NEAREST + 1, None, model.labels.alive)
    pairs = zip(found.labels[0].tolist(), found.similarity[0].tolist(), strict=True)
    kept = [(other, similarity) for other, similarity in pairs if other not in (row, -1)][:NEAREST]
    names = model.labels.names(np.array([other for other, _ in kept], np.int64))
    return [(other, Neighbour(*names[other], similarity)) for other, similarity in kept]


def _texts(items: Items, row: int) -> list[str]:
    return [text for text in items.texts[row].as_py() or [] if text.strip()]


def _named(texts: list[str], rows: int) -> tuple[str, ...]:
    """Name the rows of a bag: its texts, then its images by number."""
    return (*texts[:rows], *(f"image {n}" for n in range(1, rows - len(texts) + 1)))
