"""Heat maps between the descriptors of a datapoint and of a label: cross-attention, or plain similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from mufin.attention import CrossAttention
from mufin.bag import Bag
from mufin.data.images import load_pixels
from mufin.data.items import Items
from mufin.errors import PictureError
from mufin.evaluate.report.figures import Theme, shortened
from mufin.evaluate.report.page import Figure, Section, Text
from mufin.evaluate.report.study import Study, name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

MAPS = 3
LONGEST = 12  # descriptors a side
PIXELS = 64


@dataclass(frozen=True)
class Descriptor:
    """A row of a bag, as a reader knows it."""

    text: str
    pixels: npt.NDArray[np.uint8] | None = None


def attention_section(study: Study) -> Section:
    """Which descriptors of a label the descriptors of a datapoint look at."""
    pairs = _pairs(study)
    section = Section("attention", "Descriptors of a datapoint and of a label")
    if not pairs:
        section.blocks.append(Text("No relevant label was found in the top 10 of any datapoint."))
        return section
    attend = study.model.ranker.cross_attention
    attends = isinstance(attend, CrossAttention)
    one = all(_bag_size(study, label) < 2 for _, label in pairs)
    section.blocks.append(Text(_introduction(attends, one, study.model.embedder.raw)))
    for number, (point, label) in enumerate(pairs, 1):
        section.blocks.append(_heat_map(study, number, point, label, attends and not one))
    return section


def _introduction(attends: bool, one: bool, raw: bool) -> str:
    when = "before" if raw else "after"
    if not attends:
        return (
            "This model has no cross-attention (rank.cross is not “attention”). Shown instead: the cosine "
            f"between the rows of the datapoint's bag and those of the label's, {when} self-attention."
        )
    if one:
        return (
            "The labels have one descriptor each, on which cross-attention puts all its weight. Shown "
            f"instead: the cosine between the rows of the two bags, {when} self-attention."
        )
    return (
        "Cross-attention: how much each descriptor of the datapoint (rows) looks at each descriptor of the "
        "label (columns). Every row adds up to 1; the first block, averaged over heads."
    )


def _bag_size(study: Study, label: int) -> int:
    offsets = study.model.labels.bags.offsets
    row = int(study.model_rows[label])
    return int(offsets[row + 1] - offsets[row])


def _pairs(study: Study) -> list[tuple[int, int]]:
    """Points with a relevant hit in the top 10, those whose two bags have the most descriptors first."""
    found = [int(i) for i in study.sample(2000, np.flatnonzero(study.relevant[:, :10].any(axis=1)))]
    pairs = [(i, int(study.predictions.labels[i, study.relevant[i].argmax()])) for i in found]
    sizes = study.features.sizes

    def cells(pair: tuple[int, int]) -> int:
        own = sum(int(sizes[row]) for row in study.members(pair[0]))
        other = _bag_size(study, pair[1])
        return min(own, LONGEST) * min(other, LONGEST)

    return sorted(pairs, key=cells, reverse=True)[:MAPS]


@torch.no_grad()
def _weights(study: Study, point: int, label: int, attends: bool) -> npt.NDArray[np.float32]:
    """(m, n): attention, or the cosine of the bags' rows."""
    packed = study.query(np.array([point])).bags
    x = packed.take(torch.zeros(1, dtype=torch.int64, device=packed.rows.device))
    rows = torch.tensor([int(study.model_rows[label])], device=packed.rows.device)
    z: Bag = study.model.labels.bags.take(rows)
    attend = study.model.ranker.cross_attention
    if attends and isinstance(attend, CrossAttention):
        weights = attend.weights(x, z)[0]
    else:
        weights = F.normalize(x.values[0], dim=-1) @ F.normalize(z.values[0], dim=-1).T
    return weights.float().cpu().numpy()[:LONGEST, :LONGEST]


def _heat_map(study: Study, number: int, point: int, label: int, attends: bool) -> Figure:
    weights = _weights(study, point, label, attends)
    reads = study.model.config.modalities
    items, labels = study.catalogue.items.only(reads), study.catalogue.labels
    own = _descriptors(items, study.members(point), weights.shape[0])
    if study.catalogue.labels_are_items:
        labels = labels.only(reads)
    other = _descriptors(labels, [label], weights.shape[1])
    names = [name_of(study.catalogue.items, row) for row in study.members(point)]
    title = shortened(" + ".join(names), 60), shortened(name_of(study.catalogue.labels, label), 60)
    what = "Attention" if attends else "Cosine"

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        image = axes.imshow(weights, cmap=theme.heat, aspect="auto")
        canvas.colorbar(image, ax=axes, label=what.lower(), fraction=0.06, aspect=30, pad=0.02)
        axes.spines[:].set_visible(False)
        _ticks(axes, own, other)
        _numbers(axes, weights)

    size = (min(8.0, 4.4 + 0.9 * len(other)), 1.8 + 0.5 * len(own))
    return Figure(
        f"attention-{number}",
        f"{what} between “{title[0]}” (rows) and its relevant label “{title[1]}” (columns).",
        f"{what} from {weights.min():.2f} to {weights.max():.2f}.", draw, size,
    )  # fmt: skip


def _ticks(axes: Axes, own: list[Descriptor], other: list[Descriptor]) -> None:
    """Texts as texts, pictures as pictures."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    # Blanks keep room for a picture.
    axes.set_yticks(range(len(own)), [" " * 9 if d.pixels is not None else d.text for d in own])
    names = ["" if d.pixels is not None else d.text for d in other]
    axes.set_xticks(range(len(other)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.set_ylabel("datapoint")
    axes.set_xlabel("label", labelpad=4 if any(names) else 32)
    for descriptors, is_row in ((own, True), (other, False)):
        for place, descriptor in enumerate(descriptors):
            if descriptor.pixels is None:
                continue
            picture = OffsetImage(descriptor.pixels, zoom=0.45)
            box = AnnotationBbox(
                picture, (0, place) if is_row else (place, 0), xybox=(-4, 0) if is_row else (0, -4),
                xycoords=("axes fraction", "data") if is_row else ("data", "axes fraction"),
                boxcoords="offset points", box_alignment=(1, 0.5) if is_row else (0.5, 1),
                frameon=False, pad=0, annotation_clip=False,
            )  # fmt: skip
            axes.add_artist(box)


def _numbers(axes: Axes, weights: npt.NDArray[np.float32]) -> None:
    """The value of each cell, light on dark cells and dark on light ones."""
    middle = (float(weights.min()) + float(weights.max())) / 2
    for (row, column), value in np.ndenumerate(weights):
        colour = "#ffffff" if value < middle else "#1c1f23"
        axes.text(
            column, row, f"{value:.2f}".replace("-", "−"), ha="center", va="center", color=colour, fontsize=9
        )


def _descriptors(items: Items, rows: list[int], count: int) -> list[Descriptor]:
    """The texts, then the pictures of these items, as bags hold them; numbers where they do not match."""
    texts = [text for row in rows for text in items.texts[row].as_py() or () if text.strip()]
    found = [Descriptor(shortened(text, 26)) for text in texts]
    for row in rows:
        for picture in items.pictures.row(row):
            try:
                found.append(Descriptor("", load_pixels(picture, PIXELS)))
            except PictureError:
                continue
    if len(found) < count:  # a model that knows more pictures of a label than this catalogue
        found += [Descriptor(f"descriptor {i + 1}") for i in range(len(found), count)]
    return found[:count]
