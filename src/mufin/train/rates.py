"""The inputs of a plan: the sizes of a catalogue, and rates measured on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The size of a catalogue, or of the part that rates were measured on."""

    points: int  # N
    labels: int  # L
    used_points: int  # those with a label
    used_labels: int  # those with a point
    remembered: int  # points in the memory
    pairs: int
    items: int  # rows that are read: items of the points, and labels
    bag: float  # descriptors per label


@dataclass(frozen=True)
class Encoding:
    """How an encoder reads the descriptors of one kind."""

    count: int  # different descriptors of the catalogue
    new: int  # those not in the cache
    seconds: float  # of the frozen layers, per new descriptor
    read_seconds: float  # per descriptor: hash it, read its features
    row_bytes: float  # of its features
    sampled: int  # descriptors in memory during calibration


@dataclass(frozen=True)
class Steps:
    """Seconds per step and per embedded row, while the encoders are frozen or trained."""

    pretrain: float
    finetune: float
    point: float  # embed a datapoint
    label: float


@dataclass(frozen=True)
class Rates:
    """What was measured on this machine, on a part of the catalogue."""

    measured_on: Sizes
    encodings: dict[str, Encoding]
    load_seconds: float  # load encoders, let signals study the items
    read_item: float  # seconds of all signals per item
    frozen: Steps
    trained: Steps
    encode_point: float  # seconds of the trained layers, per datapoint
    encode_label: float
    search: float  # seconds per point and label
    assemble: float  # without embedding
    save: float
    thumbnail: float  # seconds per label
    thumbnail_bytes: float
    trains_encoders: bool
    network_bytes: int  # all that is trained but η
    encoded_bytes: int  # encoder outputs per item
    item_bytes: float  # signals' readings per item
    fixed_folder: int  # bytes of the saved model that do not depend on the catalogue
    label_folder: float  # bytes per label
    point_folder: float  # bytes per remembered point
    peak: int  # peak memory in use, bytes
    gpu_peak: int = 0


@dataclass(frozen=True)
class Effort:
    """How much a calibration measures."""

    sample: Mapping[str, int]  # descriptors that are encoded
    steps: int  # timed, after an untimed one that also allocates the optimizer's state
    rows: int  # embedded by trained encoders


FULL = Effort({"texts": 256, "titles": 256, "images": 48}, 3, 192)
QUICK = Effort({"texts": 64, "titles": 64, "images": 16}, 1, 24)
