"""Define Mufin, a trained model: embed, shortlist, recommend, add and remove labels."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.config import Config
from mufin.data.convert import as_items
from mufin.data.items import Items
from mufin.data.ragged import offsets_of
from mufin.encode.bag import Bag, PackedBags
from mufin.encode.embedder import Embedder
from mufin.encode.features import Features, Groups
from mufin.errors import UsageError
from mufin.model import change
from mufin.model.explain import Explanation, explain
from mufin.model.hits import Hit, HitLists, Hits, Ranked
from mufin.model.labels import Labels
from mufin.model.single import SingleQueries
from mufin.progress import SILENT, Task, count
from mufin.rank.ranker import Ranker
from mufin.retrieve.approximate import sample
from mufin.retrieve.build import Index, build_index
from mufin.retrieve.lists import Lists
from mufin.retrieve.shortlist import Shortlist
from mufin.runtime.autograd import inference_mode
from mufin.runtime.recorded import waits
from mufin.signals.base import Candidates, Known, Query, Signal, grouped
from mufin.signals.compatibility import Compatibility
from mufin.signals.evidence import evidence, proposed, read
from mufin.signals.mixture import PAPER_BETA, RARITY, Evidence, Mixture

if TYPE_CHECKING:
    from mufin.data.convert import Frame, ItemLike

QUERIES_PER_CHUNK = 256  # ranked at a time, which bounds the memory of (B, 100, m, D)


class Mufin:
    """A model ready to predict; create one with `fit` or read one with `load`."""

    def __init__(
        self,
        config: Config,
        embedder: Embedder,
        ranker: Ranker,
        labels: Labels,
        signals: Sequence[Signal],
        mixture: Mixture,
        points: Lists | None = None,
        index: Index | None = None,
        compatibility: Compatibility | None = None,
    ) -> None:
        self.config, self.compatibility = config, compatibility
        self.mixture = mixture.to(labels.alive.device)
        self.embedder, self.ranker = embedder.eval(), ranker.eval()
        self.labels, self.signals = labels, tuple(signals)
        self.points = Lists.none(0, labels.alive.device) if points is None else points
        self.index = index or self.new_index()
        self.single: SingleQueries | None = None
        self.exact = True  # encoders are as trained; False if `load` chose a faster form
        self.trained_on: dict[str, str] = {}  # hashes of the catalogue, if it was trained in a folder
        # manifest of each folder that the model was read from or saved to
        self.saved: dict[Path, dict[str, Any]] = {}

    def new_index(self) -> Index:
        """Build the search index of all labels."""
        settings = self.config.retrieve
        return build_index(
            self.labels.entries(settings.entries), settings.search, sample(self.point_vectors())
        )

    def point_vectors(self) -> Tensor | None:
        """Return x̂¹ (M, D) of the remembered points, or None if no signal keeps them."""
        return next((found for signal in self.signals if (found := signal.point_vectors()) is not None), None)

    @property
    def known(self) -> Known:
        """Return the parts of the model that all signals share."""
        entries = tuple(self.config.retrieve.entries)
        return Known(self.labels, self.index, entries, self.embedder, self.ranker, self.points)

    @property
    def part_descriptions(self) -> dict[str, str]:
        """Return a short description of each part of a score, for users."""
        descriptions = {signal.name: signal.description for signal in self.signals if signal.columns}
        return descriptions | {RARITY: "how rare the label is"}

    def __repr__(self) -> str:
        return f"Mufin({count(len(self.labels), 'label')}, D = {self.config.embed.dim})"

    def __copy__(self) -> Mufin:
        """Share all parts; `copy.deepcopy` and pickle go through the files of a model folder."""
        fresh = Mufin.__new__(Mufin)
        fresh.__dict__.update(self.__dict__)
        return fresh

    # -- items to queries ------------------------------------------------------------------------------------

    def embed(self, items: ItemLike | Iterable[ItemLike] | Frame) -> Bag:
        """Embed items: X̂¹ per item, padded, values (B, m, D) and mask (B, m); `.vector()` is x̂¹."""
        table = as_items(items)[0].only(self.config.modalities)
        features = self.embedder.features(table, cached=False)
        with torch.no_grad():
            bag: Bag = self.embedder(features.batch(Groups.singles(np.arange(len(table)))))
        return bag

    def features(self, items: Items, cached: bool = False, task: Task = SILENT) -> Features:
        """Compute the frozen encoder outputs of the items and the inputs of the signals."""
        return read(self.embedder, self.signals, items.only(self.config.modalities), cached, task)

    def query(self, features: Features, groups: Groups | None = None) -> Query:
        """Embed groups of items (default: one group per item) as queries for `rank`."""
        groups = groups or Groups.singles(np.arange(len(features)))
        return Query(self.known, self.embedder.embed(features, groups), grouped(features, groups))

    # -- queries to labels -----------------------------------------------------------------------------------

    def shortlist(self, items: ItemLike | Iterable[ItemLike] | Frame, k: int | None = None) -> Shortlist:
        """Return R, the k nearest labels of each item by similarity alone."""
        table = as_items(items)[0]
        wanted = k or self.config.retrieve.shortlist
        return self.index.search(
            self.embed(table).vector(), wanted, self.own_labels(table), self.labels.eligible()
        )

    @torch.no_grad()
    def rank(
        self, query: Query, k: int, exclude: csr_matrix | None = None, allowed: Tensor | None = None
    ) -> Ranked:
        """Return the k best labels of each query, without those in `exclude` (B, L)."""
        if k < 1:
            raise UsageError(f"k is {k}; expected at least 1")
        device = query.bags.rows.device
        if not len(self.labels.alive) or not len(query):
            return Ranked.empty(len(query), device)
        with inference_mode(device):
            if len(query) == 1 and exclude is None and self.labels.eligible(allowed) is None:
                ranked = self._rank_single(query, k)
                if ranked is not None:
                    return ranked
            chunks = self._candidates(query, k, exclude, allowed)
            return Ranked.join([self.top_k(*chunk, k) for chunk in chunks])

    def _rank_single(self, query: Query, k: int) -> Ranked | None:
        """Return the k best labels of a query on a GPU; None if it must be ranked like a batch."""
        if not waits(query.bags.rows):
            return None
        if self.single is None or not self.single.fits(self):
            self.single = SingleQueries(self)
        return self.single.rank(query, k)

    @torch.no_grad()
    def candidates(self, query: Query, exclude: csr_matrix | None = None) -> tuple[Tensor, Evidence]:
        """Return the candidate labels (B, K) of each query, padded with −1, and their evidence."""
        labels, found = zip(*self._candidates(query, 1, exclude, None), strict=True)
        width = max(part.shape[1] for part in labels)
        padded = [F.pad(part, (0, width - part.shape[1]), value=-1) for part in labels]
        return torch.cat(padded), Evidence.join(found)

    def _candidates(
        self, query: Query, k: int, exclude: csr_matrix | None, allowed: Tensor | None
    ) -> Iterator[tuple[Tensor, Evidence]]:
        """Yield the candidates that the signals propose and their evidence, chunk by chunk."""
        query = replace(query, known=self.known, exclude=exclude, allowed=self.labels.eligible(allowed))
        width = self.width(k)
        chunk = QUERIES_PER_CHUNK * (2 if query.bags.rows.is_cuda else 1)  # one pass of a GPU search
        for start in range(0, len(query), chunk):
            rows = np.arange(start, min(start + chunk, len(query)), dtype=np.int64)
            part = query if len(rows) == len(query) else query.take(rows)
            found = proposed(self.signals, part, width)
            yield found.rows, evidence(self.signals, part, found)

    def width(self, k: int) -> int:
        """Return how many labels a signal may propose for the k best."""
        return min(max(k, self.config.retrieve.shortlist), len(self.labels.alive))

    @torch.no_grad()
    def evidence(self, query: Query, rows: Tensor) -> Evidence:
        """Return the evidence for labels (B, K), whether or not they are candidates."""
        return evidence(self.signals, query, Candidates(rows, self.labels))

    def top_k(self, labels: Tensor, found: Evidence, k: int) -> Ranked:
        """Return the k candidates with the highest scores."""
        score = self.mixture.score(found)
        probability = self.mixture.calibration.probability(score, found.familiarity)
        best = score.sort(dim=1, descending=True, stable=True).indices[:, :k]
        shown = found.take(best)
        rows = labels.gather(1, best).where(shown.present, -1)
        return Ranked(
            rows, score.gather(1, best), probability.gather(1, best), self.mixture.parts(shown), shown.columns
        )

    @overload
    def recommend(  # type: ignore[overload-overlap]  # a str is one item, though also a sequence
        self,
        items: ItemLike,
        k: int = 10,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        *,
        min_probability: float = 0.0,
    ) -> Hits: ...
    @overload
    def recommend(
        self,
        items: Iterable[ItemLike] | Frame,
        k: int = 10,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        *,
        min_probability: float = 0.0,
    ) -> HitLists: ...
    def recommend(
        self,
        items: ItemLike | Iterable[ItemLike] | Frame,
        k: int = 10,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        *,
        min_probability: float = 0.0,
    ) -> Hits | HitLists:
        """Return the k best labels of an item, or of each item.

        An item is an `Item`, a text, a `Path` or PIL image, or a dictionary; many are a list or a data frame
        of them. Labels come from `allow` only, if given, never from `deny`, and are at least as probable as
        `min_probability`. An item that the model cannot read has no labels, and there is a warning.
        """
        if not 0 <= min_probability <= 1:
            raise UsageError(f"min_probability is {min_probability}; expected a number from 0 to 1")
        with inference_mode(self.labels.alive.device):
            table, single = as_items(items)
            if not len(table):
                return HitLists()
            own, allowed = self.own_labels(table), self.labels.allowed(allow, deny)
            features = self.features(table)
            ranked = self.hits(self.rank(self.query(features), k, own, allowed))
            hits = [Hits(each, self.labels.items).at_least(min_probability) for each in ranked]
            lists = HitLists(hits, table.ids.to_pylist())
        for row in np.flatnonzero(features.sizes == 0).tolist():
            lists[row] = Hits()
            warnings.warn(f"{self.without_content(table, row)}; it gets no labels", stacklevel=2)
        return lists[0] if single else lists

    def hits(self, ranked: Ranked) -> list[list[Hit]]:
        """Convert ranked rows to hits with ids and first texts."""
        rows = np.unique(ranked.labels.cpu().numpy())
        terms = self.mixture.terms
        columns = [column.name for column in terms.columns]
        return ranked.hits(self.labels.names(rows[rows >= 0]), terms.parts, columns)

    def explain(self, item: ItemLike, label: str) -> Explanation:
        """Explain the score of a label for an item: its parts, attention, nearest labels."""
        return explain(self, as_items(item)[0], label)

    def without_content(self, items: Items, row: int) -> str:
        """Describe an item without anything that the model reads."""
        name = items.ids[row].as_py() or row
        return f"item {name!r} has no text or readable image (this model reads: {self.config.modalities})"

    def own_labels(self, items: Items) -> csr_matrix | None:
        """Return the label (B, L) that each item is itself, or None if none of them is a label."""
        if not self.labels.own_items:
            return None
        rows = self.labels.items.rows(items.ids)
        known, shape = rows >= 0, (len(items), len(self.labels.alive))
        if not known.any():
            return None
        return csr_matrix((known[known], rows[known], offsets_of(known)), shape)

    @torch.no_grad()
    def score(self, bags: PackedBags, candidates: PackedBags) -> Tensor:
        """Return s (B, C) of each bag and each candidate, scored as an untrained label: w = ẑ, no memory.

        Uses the paper's β if the mixture is learnt, since that is not fitted to untrained labels.
        """
        beta = PAPER_BETA if self.config.rank.beta == "learnt" else self.config.rank.beta
        c, a = self.ranker.untrained(bags, candidates)
        return beta * c + (1 - beta) * a

    # -- labels come and go ----------------------------------------------------------------------------------

    def add_labels(self, items: ItemLike | Iterable[ItemLike] | Frame) -> None:
        """Add labels without training (α = 1, no centroid); they can be recommended at once."""
        change.add_labels(self, as_items(items)[0])

    def remove_labels(self, ids: str | Sequence[str]) -> None:
        """Remove labels at once, and from the model folder at the next save."""
        listed = [ids] if isinstance(ids, str) else list(ids)
        self.labels = self.labels.removed(self.labels.rows(listed))

    def compact(self) -> None:
        """Drop the rows of removed labels, also from the index and the memory."""
        change.compact(self)

    def add_examples(
        self, items: ItemLike | Iterable[ItemLike] | Frame, labels: Sequence[Sequence[str]]
    ) -> None:
        """Add items with their labels to the memory, without training; they vote at once.

        A label listed several times for an item counts once.
        """
        change.add_examples(self, as_items(items)[0], labels)
