"""From items to queries: what the encoders and the signals read of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mufin.data.items import Items
from mufin.encode.embedder import Embedder
from mufin.encode.features import Advance, Features, silent
from mufin.progress import Progress
from mufin.ragged import Ints
from mufin.signals.base import Signal


def read(
    embedder: Embedder,
    signals: Sequence[Signal],
    items: Items,
    cached: bool = True,
    progress: Advance = silent,
) -> Features:
    """The frozen outputs of all descriptors, and what each signal reads of the items."""
    found = embedder.features(items, cached, progress)
    readings = {signal.name: signal.read(items, found, cached, progress) for signal in signals}
    return replace(found, readings={name: rows for name, rows in readings.items() if rows is not None})


def read_some(
    embedder: Embedder, signals: Sequence[Signal], items: Items, rows: Ints, progress: Progress, name: str
) -> Features:
    """Features of these rows, numbered like all items; the others stay empty, their images unread."""
    used = np.unique(rows)
    chosen = items.take(used)
    (starts, texts), pictures = chosen.flat_texts(), chosen.flat_images()[1]
    titles_again = int(np.count_nonzero(np.diff(starts))) * sum(s.network is not None for s in signals)
    with progress.task(name, len(texts) + len(pictures) + titles_again) as task:
        found = read(embedder, signals, chosen, progress=lambda *_: task.advance)
    return found.spread(used, len(items))
