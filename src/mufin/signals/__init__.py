"""Evidence about (query, label) pairs: one file per signal, and the mixture that makes it a score."""

from __future__ import annotations

from mufin.config import Config
from mufin.encode.checkpoints import Layout
from mufin.signals.base import Signal
from mufin.signals.classifier import Classifier
from mufin.signals.memory import Memory
from mufin.signals.pretrained import Pretrained
from mufin.signals.similarity import Similarity
from mufin.signals.titles import Titles
from mufin.signals.words import Words

# In this order: the shortlist comes first, and titles count the votes of neighbours that others found.
SIGNALS: list[type[Signal]] = [Similarity, Classifier, Memory, Words, Titles, Pretrained]


def signals_of(config: Config, layout: Layout | None = None) -> tuple[Signal, ...]:
    """The signals that these settings ask for, before training."""
    made = (kind.of(config, layout) for kind in SIGNALS)
    return tuple(signal for signal in made if signal is not None)
