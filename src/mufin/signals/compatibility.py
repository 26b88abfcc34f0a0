"""Compatibility: which content goes with which, in closed form, for labels without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import Tensor

from mufin.data.ragged import Ints
from mufin.errors import UsageError
from mufin.signals.mixture import softmax_weights

MOST = 50_000  # pairs remembered
WIDTH = 0.5  # of the kernel, in coordinates whose variance is at most 1
FLOOR = 0.01  # how far below chance a pair may count
CHUNK = 256  # rows of (B, P) kernels at a time


@dataclass(frozen=True)
class Pairs:
    """P pairs in coordinates where points and labels can be compared with others of their kind."""

    points: Tensor  # (P, k)
    labels: Tensor  # (P, k)
    weight: Tensor  # (P,), sums to 1

    @classmethod
    def of(cls, points: Tensor, labels: Tensor, weights: csr_matrix) -> Pairs:
        """All weighted pairs (N, L) of points (N, k) and labels (L, k), or an even sample of them."""
        pairs = weights.tocoo()
        chosen = np.arange(0, pairs.nnz, max(1, -(-pairs.nnz // MOST)))
        rows, columns = (torch.from_numpy(which[chosen].astype(np.int64)) for which in (pairs.row, pairs.col))
        weight = torch.from_numpy(pairs.data[chosen].astype(np.float32))
        return cls(points[rows], labels[columns], weight / weight.sum())

    def score(self, x: Tensor, z: Tensor) -> Tensor:
        """log(0.01 + Σ w K(x, xᵢ) K(z, zᵢ) / (Σ w K(x, xᵢ) · Σ w K(z, zᵢ))), (B, C); K = exp(−|·|² / 0.5)."""
        near_z = _kernel(z, self.labels)  # (C, P)
        return torch.cat([self._chunk(part, near_z) for part in x.split(CHUNK)])

    def _chunk(self, x: Tensor, near_z: Tensor) -> Tensor:
        near_x = _kernel(x, self.points) * self.weight  # (B, P)
        apart = near_x.sum(1)[:, None] * (near_z @ self.weight)
        return (near_x @ near_z.T / apart.clamp(min=1e-12) + FLOOR).log()


def _kernel(x: Tensor, others: Tensor) -> Tensor:
    """exp(−|x − o|² / WIDTH), (B, P), of each row relative to its nearest: a ratio is left as it is."""
    distance = torch.cdist(x, others, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (-(distance - distance.amin(1, keepdim=True)) / WIDTH).exp()


COMPONENTS = 128  # principal components kept of each encoder's output
SHRINKAGE = 0.3  # of a covariance towards the sphere
NEAR = 24  # strongest correlations that remembered pairs are compared by
CLOSEST = 0.95  # a correlation of 1 would weigh infinitely
PARTS = ("classifier", "similarity", "compatibility")
START = (0.0, 0.0, 1.0)  # compatibility is a log odds: by itself it needs no weight
SCALE = (20.0, 20.0, 1.0)
RIDGE, FEW = 1e-2, 10.0  # held-out points with labels that nobody else has are few


@dataclass(frozen=True)
class Side:
    """Evidence e (n, H), NaN where there is none, to coordinates (e − mean) · basis − shift, (n, k)."""

    mean: Tensor  # (H,)
    basis: Tensor  # (H, k)
    shift: Tensor  # (k,)

    @classmethod
    def principal(cls, evidence: Tensor, blocks: list[slice]) -> Side:
        """The principal components of each block of columns, what an encoder says; others are not read."""
        mean = evidence.nanmean(0).nan_to_num()
        bases = []
        for block in blocks:
            part = _principal(evidence[:, block] - mean[block])
            bases.append(part.new_zeros(len(mean), part.shape[1]))
            bases[-1][block] = part
        basis = torch.cat(bases, 1)
        return cls(mean, basis, basis.new_zeros(basis.shape[1]))

    def __call__(self, evidence: Tensor) -> Tensor:
        """What is missing counts as the mean."""
        known: Tensor = (evidence.to(self.mean) - self.mean).nan_to_num()
        return known @ self.basis - self.shift

    def columns(self, block: slice) -> Tensor:
        """Which coordinates come from these columns of the evidence, (k,) bool."""
        return self.basis[block].any(0)

    def only(self, which: Tensor) -> Side:
        """Some of the coordinates."""
        return Side(self.mean, self.basis[:, which], self.shift[which])

    def turned(self, centre: Tensor, by: Tensor) -> Side:
        """Coordinates y as (y − centre) · by."""
        return Side(self.mean, self.basis @ by, (self.shift + centre) @ by)


@dataclass(frozen=True)
class View:
    """log p(x, z) / (p(x) p(z)) twice, added: by a Gaussian and by the remembered pairs around x and z.

    The Gaussian's is Σ −½ log(1 − ρ²) + (ρ x z − ½ ρ² (x² + z²)) / (1 − ρ²).
    """

    points: Side
    labels: Side
    correlation: Tensor  # ρ (k,), falling
    pairs: Pairs

    @classmethod
    def fit(cls, points: Side, labels: Side, x: Tensor, z: Tensor, relevance: csr_matrix) -> View:
        """From coordinates x (N, k) and z (L, k') and how often each pair was met, (N, L)."""
        pairs = _even(relevance)
        x, z = x.double().cpu(), z.double().cpu()
        of_x, of_z = (torch.from_numpy(np.asarray(pairs.sum(axis)).ravel()) for axis in (1, 0))
        mean_x, mean_z = of_x @ x, of_z @ z
        x, z = x - mean_x, z - mean_z
        white_x, white_z = (
            _whitening((side * weight[:, None]).T @ side, relevance.nnz)
            for side, weight in ((x, of_x), (z, of_z))
        )
        across = x.T @ torch.from_numpy(pairs @ z.numpy())
        left, correlation, right = torch.linalg.svd(white_x @ across @ white_z, full_matrices=False)
        turn_x, turn_z, correlation = white_x @ left, white_z @ right.T, correlation.clamp(max=CLOSEST)
        near_x, near_z = (_near(c, correlation).float() for c in (x @ turn_x, z @ turn_z))
        return cls(
            points.turned(mean_x.float(), turn_x.float()), labels.turned(mean_z.float(), turn_z.float()),
            correlation.float(), Pairs.of(near_x, near_z, pairs),
        )  # fmt: skip

    def score(self, points: Tensor, labels: Tensor) -> Tensor:
        """(B, C) of points by their evidence (B, H) and labels by theirs (C, H')."""
        x, z, r = self.points(points), self.labels(labels), self.correlation
        rest = 1 - r.square()
        alone = r.square() / (2 * rest)
        together = (x * r / rest) @ z.T
        gaussian = together - (x.square() @ alone)[:, None] - z.square() @ alone - rest.log().sum() / 2
        return gaussian + self.pairs.score(_near(x, r), _near(z, r))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What a model folder keeps."""
        for name in ("points", "labels", "pairs"):
            yield from ((f"{name}.{key}", tensor) for key, tensor in vars(getattr(self, name)).items())
        yield "correlation", self.correlation

    @classmethod
    def of(cls, tensors: dict[str, Tensor], prefix: str = "") -> View:
        """From what `tensors` gave, each name behind the prefix."""
        points, labels = (
            Side(*(tensors[f"{prefix}{name}.{key}"] for key in ("mean", "basis", "shift")))
            for name in ("points", "labels")
        )
        pairs = Pairs(*(tensors[f"{prefix}pairs.{key}"] for key in ("points", "labels", "weight")))
        view = cls(points, labels, tensors[f"{prefix}correlation"], pairs)
        if not view.fits:
            raise UsageError(f"the tensors of {prefix or 'it'} do not fit together")
        return view

    @property
    def fits(self) -> bool:
        """Whether all tensors are of the shapes that go together."""
        k, p = self.correlation.numel(), self.pairs.weight.numel()
        known: list[tuple[Tensor, tuple[int, ...]]] = [(self.correlation, (k,)), (self.pairs.weight, (p,))]
        known += [(each, (p, min(k, NEAR))) for each in (self.pairs.points, self.pairs.labels)]
        for side in (self.points, self.labels):
            width = side.mean.numel()
            known += [(side.mean, (width,)), (side.basis, (width, k)), (side.shift, (k,))]
        return all(tuple(tensor.shape) == shape and tensor.dtype == torch.float32 for tensor, shape in known)


@dataclass(frozen=True)
class Compatibility:
    """f: the mean of several views, by all encoders and by each alone, of a whole set and of its members."""

    sets: tuple[View, ...]  # evidence of a datapoint with a label's
    members: tuple[View, ...]  # of one item of a datapoint with a label's; none where points are items
    mixture: Tensor  # (3,) weights of c, a and f in the score of a label without training

    def score(self, points: Tensor, items: Tensor, member: Ints, offsets: Ints, labels: Tensor) -> Tensor:
        """f (B, C) by the evidence of points (B, H), of items (I, H) and of labels (C, H').

        Point b has the items member[offsets[b] : offsets[b + 1]]; each is scored by itself, then their mean
        is taken.
        """
        total = torch.stack([view.score(points, labels) for view in self.sets]).sum(0)
        if self.members:
            single = torch.stack([view.score(items, labels) for view in self.members]).sum(0)
            sizes = torch.from_numpy(np.diff(offsets))
            point = torch.arange(len(sizes)).repeat_interleave(sizes)
            total = total.index_add(0, point, single[torch.from_numpy(member)] / sizes[point, None])
        return total / (len(self.sets) + len(self.members))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What a model folder keeps."""
        for kind in ("sets", "members"):
            for number, view in enumerate(getattr(self, kind)):
                yield from ((f"{kind}.{number}.{name}", tensor) for name, tensor in view.tensors())
        yield "mixture", self.mixture

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Compatibility:
        """From what `tensors` gave."""
        sets, members = (
            tuple(
                View.of(tensors, f"{kind}.{number}.")
                for number in range(sum(name.startswith(f"{kind}.") for name in tensors))
                if f"{kind}.{number}.correlation" in tensors
            )
            for kind in ("sets", "members")
        )
        if not sets or tuple(tensors["mixture"].shape) != (len(PARTS),):
            raise UsageError("it has no view of sets, or no mixture")
        return cls(sets, members, tensors["mixture"])

    def mixed(self, parts: Tensor) -> Tensor:
        """s (B, C) of the parts (B, C, 3)."""
        return parts @ self.mixture.to(parts)

    def learnt(self, parts: Tensor, relevant: Tensor, negative: Tensor) -> Compatibility:
        """With the mixture that ranks relevant labels without training above negative ones, (B, C) bool."""
        start, scale = (torch.tensor(values).to(parts) for values in (START, SCALE))
        mixture = softmax_weights(parts, relevant, negative, start, scale, lambda n: max(RIDGE, FEW / n))
        return replace(self, mixture=mixture.cpu())


def _even(relevance: csr_matrix) -> csr_matrix:
    """Weights that sum to 1, r / √(Σ r of the point · Σ r of the label): what is everywhere says less."""
    pairs = csr_matrix(relevance, dtype=np.float64)
    rows, columns = (1 / np.sqrt(np.maximum(np.asarray(pairs.sum(axis)).ravel(), 1)) for axis in (1, 0))
    pairs = csr_matrix(diags(rows) @ pairs @ diags(columns))
    pairs.data /= pairs.data.sum()
    return pairs


def _near(coordinates: Tensor, correlation: Tensor) -> Tensor:
    """The coordinates that tell most of the other side, by how much they tell."""
    return coordinates[:, :NEAR] * correlation[:NEAR].sqrt()


def _principal(centred: Tensor) -> Tensor:
    """(n, H) with NaN where nothing is known → (H, k): columns standardised, then turned, then unit variance
    in the mean; no components where nothing varies."""
    known = centred[~centred.isnan().any(1)].double()
    k = min(COMPONENTS, known.shape[1], len(known) - 1)
    if k < 1:
        return centred.new_zeros(centred.shape[1], 0)
    deviation = known.square().mean(0).sqrt()
    scale = 1 / (deviation + 1e-3 * deviation.mean() + 1e-9)
    known = known * scale
    values, vectors = torch.linalg.eigh(known.T @ known / len(known))
    overall = values[-k:].clamp(min=0).mean().sqrt()
    if overall < 1e-6:
        return centred.new_zeros(centred.shape[1], 0)
    basis: Tensor = vectors[:, -k:] * scale[:, None] / overall
    return basis.to(centred)


def _whitening(covariance: Tensor, pairs: int) -> Tensor:
    """C^(−½) of a covariance shrunk towards the sphere, the more the fewer pairs it comes from."""
    k = len(covariance)
    if not k:
        return covariance
    sphere = (SHRINKAGE + k / max(1, pairs)) * covariance.trace() / k + 1e-9
    values, vectors = torch.linalg.eigh(covariance + sphere * torch.eye(k, dtype=covariance.dtype))
    root: Tensor = (vectors / values.sqrt()) @ vectors.T
    return root
