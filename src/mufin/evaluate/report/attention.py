"""Section: heat maps of cross-attention, or of cosine similarity, between descriptors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from mufin.data.images import load_pixels
from mufin.data.items import Items
from mufin.encode.attention import CrossAttention
from mufin.encode.bag import Bag
from mufin.errors import PictureError
from mufin.evaluate.report.data import ReportData, display_name
from mufin.evaluate.report.figures import Theme, truncate
from mufin.evaluate.report.page import Figure, Section, Text
from mufin.model.explain import attention

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

HEAT_MAPS = 3
MAX_DESCRIPTORS = 12  # rows or columns of a heat map
CANDIDATE_POINTS = 2000  # among which the largest heat maps are chosen
TOP_HITS = 10
THUMBNAIL_PIXELS = 64
TITLE_CHARACTERS, TICK_CHARACTERS = 60, 26


@dataclass(frozen=True)
class Descriptor:
    """A row of a bag as it is shown: a text or an image."""

    text: str
    pixels: npt.NDArray[np.uint8] | None = None


def attention_section(data: ReportData) -> Section:
    """Which descriptors of a label the descriptors of a datapoint attend to."""
    pairs = _pairs(data)
    section = Section("attention", "Attention between descriptors")
    if not pairs:
        section.blocks.append(Text(f"No datapoint has a relevant label in its top {TOP_HITS}."))
        return section
    attends = isinstance(data.model.ranker.cross_attention, CrossAttention)
    single = all(_bag_size(data, label) < 2 for _, label in pairs)
    section.blocks.append(Text(_introduction(attends, single, data.model.embedder.raw)))
    attends = attends and not single
    weights = [_weights(data, *pair, attends) for pair in pairs]
    lowest = 0.0 if attends else min(float(table.min()) for table in weights)
    scale = lowest, max(float(table.max()) for table in weights)  # the same for all, so that colours compare
    for number, (pair, table) in enumerate(zip(pairs, weights, strict=True), 1):
        section.blocks.append(_heat_map(data, number, pair, table, scale, attends))
    return section


def _introduction(attends: bool, single: bool, raw: bool) -> str:
    cosine = f"Shown instead: the cosine of the descriptors, {'before' if raw else 'after'} self-attention."
    if not attends:
        return f"This model has no cross-attention (rank.cross is not “attention”). {cosine}"
    if single:
        return f"The labels have one descriptor each, which gets all the attention. {cosine}"
    return (
        "Cross-attention: how much each descriptor of the datapoint (rows) attends to each descriptor of the "
        "label (columns), in the first block, averaged over heads. Each row adds up to 1. All figures share "
        "one colour scale."
    )


def _bag_size(data: ReportData, label: int) -> int:
    offsets = data.model.labels.bags.offsets
    row = int(data.model_rows[label])
    return int(offsets[row + 1] - offsets[row])


def _pairs(data: ReportData) -> list[tuple[int, int]]:
    """Datapoints and their best relevant hits, those with the largest heat maps."""
    usable = np.flatnonzero(data.relevant[:, :TOP_HITS].any(axis=1))
    points = [int(i) for i in data.sample(CANDIDATE_POINTS, usable)]
    pairs = [(i, int(data.predictions.labels[i, data.relevant[i].argmax()])) for i in points]
    sizes = data.features.sizes

    def cells(pair: tuple[int, int]) -> int:
        rows = sum(int(sizes[row]) for row in data.members(pair[0]))
        return min(rows, MAX_DESCRIPTORS) * min(_bag_size(data, pair[1]), MAX_DESCRIPTORS)

    return sorted(pairs, key=cells, reverse=True)[:HEAT_MAPS]


@torch.no_grad()
def _weights(data: ReportData, point: int, label: int, attends: bool) -> npt.NDArray[np.float32]:
    """Attention or cosine between the rows of the two bags, (m, n)."""
    packed = data.query(np.array([point])).bags
    x = packed.take(torch.zeros(1, dtype=torch.int64, device=packed.rows.device))
    rows = torch.tensor([int(data.model_rows[label])], device=packed.rows.device)
    z: Bag = data.model.labels.bags.take(rows)
    if attends:
        weights = attention(data.model.ranker, x, z)[1][0]
    else:
        weights = F.normalize(x.values[0], dim=-1) @ F.normalize(z.values[0], dim=-1).T
    return weights.float().cpu().numpy()[:MAX_DESCRIPTORS, :MAX_DESCRIPTORS]


def _heat_map(
    data: ReportData,
    number: int,
    pair: tuple[int, int],
    weights: npt.NDArray[np.float32],
    scale: tuple[float, float],
    attends: bool,
) -> Figure:
    point, label = pair
    rows, columns = _axis_descriptors(data, point, label, weights.shape)
    names = " + ".join(display_name(data.catalogue.items, row) for row in data.members(point))
    point_name = truncate(names, TITLE_CHARACTERS)
    label_name = truncate(display_name(data.catalogue.labels, label), TITLE_CHARACTERS)
    measure = "Attention" if attends else "Cosine"

    def draw(canvas: Canvas, theme: Theme) -> None:
        axes = canvas.subplots()
        image = axes.imshow(weights, cmap=theme.colormap, aspect="auto", vmin=scale[0], vmax=scale[1])
        canvas.colorbar(image, ax=axes, label=measure.lower(), fraction=0.06, aspect=30, pad=0.02)
        axes.spines[:].set_visible(False)
        _label_axes(axes, rows, columns)
        _print_values(axes, weights, sum(scale) / 2)

    size = (min(8.0, 4.4 + 0.9 * len(columns)), 1.8 + 0.5 * len(rows))
    return Figure(
        f"attention-{number}",
        f"{measure} between “{point_name}” (rows) and its relevant label “{label_name}” (columns).",
        f"{measure} from {weights.min():.2f} to {weights.max():.2f}.", draw, size,
    )  # fmt: skip


def _axis_descriptors(
    data: ReportData, point: int, label: int, shape: tuple[int, ...]
) -> tuple[list[Descriptor], list[Descriptor]]:
    """The descriptors of the datapoint and of the label, as the model reads them."""
    modalities = data.model.config.modalities
    items, labels = data.catalogue.items.only(modalities), data.catalogue.labels
    if data.catalogue.labels_are_items:
        labels = labels.only(modalities)
    return _descriptors(items, data.members(point), shape[0]), _descriptors(labels, [label], shape[1])


def _descriptors(items: Items, rows: list[int], count: int) -> list[Descriptor]:
    """The texts, then the images of these items, in the order of their bags."""
    texts = [text for row in rows for text in items.texts[row].as_py() or () if text.strip()]
    found = [Descriptor(truncate(text, TICK_CHARACTERS)) for text in texts]
    for row in rows:
        for image in items.pictures.row(row):
            try:
                found.append(Descriptor("", load_pixels(image, THUMBNAIL_PIXELS)))
            except PictureError:
                continue
    if len(found) < count:  # the model may know more images of a label than this catalogue has
        found += [Descriptor(f"descriptor {i + 1}") for i in range(len(found), count)]
    return found[:count]


def _label_axes(axes: Axes, rows: list[Descriptor], columns: list[Descriptor]) -> None:
    """Label the axes with texts and thumbnails."""
    # Blanks reserve space for a thumbnail.
    axes.set_yticks(range(len(rows)), [" " * 9 if d.pixels is not None else d.text for d in rows])
    names = ["" if d.pixels is not None else d.text for d in columns]
    axes.set_xticks(range(len(columns)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.set_ylabel("datapoint")
    axes.set_xlabel("label", labelpad=4 if any(names) else 32)
    for descriptors, is_row in ((rows, True), (columns, False)):
        for position, descriptor in enumerate(descriptors):
            if descriptor.pixels is not None:
                _add_thumbnail(axes, descriptor.pixels, position, is_row)


def _add_thumbnail(axes: Axes, pixels: npt.NDArray[np.uint8], position: int, is_row: bool) -> None:
    """Put an image where the tick label of a row or column would be."""
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    box = AnnotationBbox(
        OffsetImage(pixels, zoom=0.45),
        (0, position) if is_row else (position, 0), xybox=(-4, 0) if is_row else (0, -4),
        xycoords=("axes fraction", "data") if is_row else ("data", "axes fraction"),
        boxcoords="offset points", box_alignment=(1, 0.5) if is_row else (0.5, 1),
        frameon=False, pad=0, annotation_clip=False,
    )  # fmt: skip
    axes.add_artist(box)


def _print_values(axes: Axes, weights: npt.NDArray[np.float32], middle: float) -> None:
    """Print the value of each cell, light on dark or dark on light."""
    for (row, column), value in np.ndenumerate(weights):
        colour = "#ffffff" if value < middle else "#1c1f23"
        text = f"{value:.2f}".replace("-", "−")
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
