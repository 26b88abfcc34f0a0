"""Signals, the sources of evidence about (query, label) pairs, and the mixture that scores them."""

from __future__ import annotations

from mufin.config import Config
from mufin.encode.checkpoints import Layout
from mufin.signals.base import Signal
from mufin.signals.classifier import Classifier
from mufin.signals.images import Images
from mufin.signals.linear import Linear
from mufin.signals.memory import Memory
from mufin.signals.pretrained import Pretrained
from mufin.signals.similarity import Similarity
from mufin.signals.titles import Titles
from mufin.signals.words import Words

# The order matters: the shortlist comes first, and Titles needs the neighbours found by Memory and Words.
SIGNALS: list[type[Signal]] = [Similarity, Classifier, Memory, Words, Titles, Pretrained, Linear, Images]


def signals_of(config: Config, layout: Layout | None = None) -> tuple[Signal, ...]:
    """Create the untrained signals that the settings enable."""
    created = (kind.of(config, layout) for kind in SIGNALS)
    return tuple(signal for signal in created if signal is not None)
