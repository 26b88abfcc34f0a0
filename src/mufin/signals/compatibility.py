"""Compatibility of datapoints and labels by content, in closed form, for labels without training."""

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

MAX_PAIRS = 50_000  # remembered
KERNEL_WIDTH = 0.5  # in coordinates with a variance of at most 1
RATIO_FLOOR = 0.01  # added to the density ratio, so that an unlikely pair keeps a finite logarithm
CHUNK_ROWS = 256  # of a (B, P) kernel


@dataclass(frozen=True)
class Pairs:
    """P remembered pairs, in coordinates for comparing points with points and labels with labels."""

    points: Tensor  # (P, k)
    labels: Tensor  # (P, k)
    weight: Tensor  # (P,), sum to 1

    @classmethod
    def of(cls, points: Tensor, labels: Tensor, weights: csr_matrix) -> Pairs:
        """Store all weighted pairs (N, L) of points (N, k) and labels (L, k), or evenly spaced ones."""
        pairs = weights.tocoo()
        chosen = np.arange(0, pairs.nnz, max(1, -(-pairs.nnz // MAX_PAIRS)))
        rows, columns = (torch.from_numpy(which[chosen].astype(np.int64)) for which in (pairs.row, pairs.col))
        weight = torch.from_numpy(pairs.data[chosen].astype(np.float32))
        return cls(points[rows], labels[columns], weight / weight.sum())

    def score(self, x: Tensor, z: Tensor) -> Tensor:
        """Return log(0.01 + Σ w K(x, xᵢ) K(z, zᵢ) / (Σ w K(x, xᵢ) · Σ w K(z, zᵢ))), (B, C).

        K is the kernel exp(−|·|² / 0.5).
        """
        kernel_z = _kernel(z, self.labels)  # (C, P)
        return torch.cat([self._score_chunk(part, kernel_z) for part in x.split(CHUNK_ROWS)])

    def _score_chunk(self, x: Tensor, kernel_z: Tensor) -> Tensor:
        kernel_x = _kernel(x, self.points) * self.weight  # (B, P)
        independent = kernel_x.sum(1)[:, None] * (kernel_z @ self.weight)
        return (kernel_x @ kernel_z.T / independent.clamp(min=1e-12) + RATIO_FLOOR).log()


def _kernel(x: Tensor, others: Tensor) -> Tensor:
    """Return exp(−|x − o|² / KERNEL_WIDTH), (B, P), divided by each row's maximum; ratios do not change."""
    distance = torch.cdist(x, others, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (-(distance - distance.amin(1, keepdim=True)) / KERNEL_WIDTH).exp()


COMPONENTS = 128  # principal components kept per encoder
SHRINKAGE = 0.3  # of a covariance towards a multiple of the identity
KERNEL_COORDINATES = 24  # most correlated coordinates, used by the kernels
MAX_CORRELATION = 0.95  # the score diverges at 1
PARTS = ("classifier", "similarity", "compatibility")
START_WEIGHTS = (0.0, 0.0, 1.0)  # compatibility is a log density ratio, so its natural weight is 1
WEIGHT_SCALE = (20.0, 20.0, 1.0)
RIDGE = 1e-2
SMALL_SAMPLE = 10.0  # queries; few held-out points have a label that no other point has, so a ridge is needed


@dataclass(frozen=True)
class Side:
    """Map content e (n, H), NaN where missing, to coordinates (e − mean) · basis − shift, (n, k)."""

    mean: Tensor  # (H,)
    basis: Tensor  # (H, k)
    shift: Tensor  # (k,)

    @classmethod
    def principal(cls, content: Tensor, blocks: list[slice]) -> Side:
        """Compute principal components per block of columns (one per encoder); ignore other columns."""
        mean = content.nanmean(0).nan_to_num()
        bases = []
        for block in blocks:
            part = _principal_components(content[:, block] - mean[block])
            bases.append(part.new_zeros(len(mean), part.shape[1]))
            bases[-1][block] = part
        basis = torch.cat(bases, 1)
        return cls(mean, basis, basis.new_zeros(basis.shape[1]))

    def __call__(self, content: Tensor) -> Tensor:
        """Map content to coordinates, replacing missing values by the mean."""
        centred: Tensor = (content.to(self.mean) - self.mean).nan_to_num()
        return centred @ self.basis - self.shift

    def columns(self, block: slice) -> Tensor:
        """Return a mask (k,) of the coordinates that depend on these columns of the content."""
        return self.basis[block].any(0)

    def only(self, which: Tensor) -> Side:
        """Keep only these coordinates."""
        return Side(self.mean, self.basis[:, which], self.shift[which])

    def transformed(self, centre: Tensor, matrix: Tensor) -> Side:
        """Replace coordinates y by (y − centre) · matrix."""
        return Side(self.mean, self.basis @ matrix, (self.shift + centre) @ matrix)


@dataclass(frozen=True)
class View:
    """The sum of two estimates of log p(x, z) / (p(x) p(z)): Gaussian, and by kernels on remembered pairs.

    The Gaussian estimate is Σ −½ log(1 − ρ²) + (ρ x z − ½ ρ² (x² + z²)) / (1 − ρ²).
    """

    points: Side
    labels: Side
    correlation: Tensor  # ρ (k,), descending
    pairs: Pairs

    @classmethod
    def fit(cls, points: Side, labels: Side, x: Tensor, z: Tensor, relevance: csr_matrix) -> View:
        """Fit to coordinates x (N, k) and z (L, k') and the count of each pair, (N, L)."""
        pairs = _balanced_weights(relevance)
        x, z = x.double().cpu(), z.double().cpu()
        weight_x, weight_z = (torch.from_numpy(np.asarray(pairs.sum(axis)).ravel()) for axis in (1, 0))
        mean_x, mean_z = weight_x @ x, weight_z @ z
        x, z = x - mean_x, z - mean_z
        white_x, white_z = (
            _whitening((side * weight[:, None]).T @ side, relevance.nnz)
            for side, weight in ((x, weight_x), (z, weight_z))
        )
        cross_covariance = x.T @ torch.from_numpy(pairs @ z.numpy())
        left, correlation, right = torch.linalg.svd(white_x @ cross_covariance @ white_z, full_matrices=False)
        to_x, to_z, correlation = white_x @ left, white_z @ right.T, correlation.clamp(max=MAX_CORRELATION)
        kernel_x, kernel_z = (_kernel_coordinates(c, correlation).float() for c in (x @ to_x, z @ to_z))
        return cls(
            points.transformed(mean_x.float(), to_x.float()),
            labels.transformed(mean_z.float(), to_z.float()),
            correlation.float(),
            Pairs.of(kernel_x, kernel_z, pairs),
        )

    def score(self, points: Tensor, labels: Tensor) -> Tensor:
        """Score points and labels, (B, C), from content (B, H) and (C, H')."""
        x, z, r = self.points(points), self.labels(labels), self.correlation
        rest = 1 - r.square()
        quadratic = r.square() / (2 * rest)
        mixed = (x * r / rest) @ z.T
        gaussian = mixed - (x.square() @ quadratic)[:, None] - z.square() @ quadratic - rest.log().sum() / 2
        return gaussian + self.pairs.score(_kernel_coordinates(x, r), _kernel_coordinates(z, r))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors to store in a model folder, by name."""
        for name in ("points", "labels", "pairs"):
            yield from ((f"{name}.{key}", tensor) for key, tensor in vars(getattr(self, name)).items())
        yield "correlation", self.correlation

    @classmethod
    def of(cls, tensors: dict[str, Tensor], prefix: str = "") -> View:
        """Restore from the tensors that `tensors` yielded, their names prefixed with `prefix`."""
        points, labels = (
            Side(*(tensors[f"{prefix}{name}.{key}"] for key in ("mean", "basis", "shift")))
            for name in ("points", "labels")
        )
        pairs = Pairs(*(tensors[f"{prefix}pairs.{key}"] for key in ("points", "labels", "weight")))
        view = cls(points, labels, tensors[f"{prefix}correlation"], pairs)
        if not view.is_consistent:
            raise UsageError(f"the shapes or dtypes of tensors {prefix}* do not match")
        return view

    @property
    def is_consistent(self) -> bool:
        """Whether all tensors are float32 and their shapes match."""
        k, p = self.correlation.numel(), self.pairs.weight.numel()
        expected: list[tuple[Tensor, tuple[int, ...]]] = [(self.correlation, (k,)), (self.pairs.weight, (p,))]
        expected += [
            (each, (p, min(k, KERNEL_COORDINATES))) for each in (self.pairs.points, self.pairs.labels)
        ]
        for side in (self.points, self.labels):
            width = side.mean.numel()
            expected += [(side.mean, (width,)), (side.basis, (width, k)), (side.shift, (k,))]
        return all(
            tuple(tensor.shape) == shape and tensor.dtype == torch.float32 for tensor, shape in expected
        )


@dataclass(frozen=True)
class Compatibility:
    """f: the mean score of several views, with all encoders and each alone, for sets and for members."""

    sets: tuple[View, ...]  # of a whole datapoint and a label
    members: tuple[View, ...]  # of one item of a datapoint and a label; empty if every datapoint is one item
    mixture: Tensor  # (3,) weights of c, a and f in the score of an untrained label

    def score(self, points: Tensor, items: Tensor, member: Ints, offsets: Ints, labels: Tensor) -> Tensor:
        """Return f (B, C) from the content of points (B, H), items (I, H) and labels (C, H').

        Point b has the items member[offsets[b] : offsets[b + 1]]; their scores are averaged.
        """
        total = torch.stack([view.score(points, labels) for view in self.sets]).sum(0)
        if self.members:
            single = torch.stack([view.score(items, labels) for view in self.members]).sum(0)
            sizes = torch.from_numpy(np.diff(offsets))
            point = torch.arange(len(sizes)).repeat_interleave(sizes)
            total = total.index_add(0, point, single[torch.from_numpy(member)] / sizes[point, None])
        return total / (len(self.sets) + len(self.members))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors to store in a model folder, by name."""
        for kind in ("sets", "members"):
            for number, view in enumerate(getattr(self, kind)):
                yield from ((f"{kind}.{number}.{name}", tensor) for name, tensor in view.tensors())
        yield "mixture", self.mixture

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> Compatibility:
        """Restore from the tensors that `tensors` yielded."""
        sets, members = (
            tuple(
                View.of(tensors, f"{kind}.{number}.")
                for number in range(sum(name.startswith(f"{kind}.") for name in tensors))
                if f"{kind}.{number}.correlation" in tensors
            )
            for kind in ("sets", "members")
        )
        if not sets or tuple(tensors["mixture"].shape) != (len(PARTS),):
            raise UsageError("no views of sets, or a mixture of the wrong size")
        return cls(sets, members, tensors["mixture"])

    def mixed(self, parts: Tensor) -> Tensor:
        """Return s (B, C), the weighted sum of the parts (B, C, 3)."""
        return parts @ self.mixture.to(parts)

    def learnt(self, parts: Tensor, relevant: Tensor, negative: Tensor) -> Compatibility:
        """Fit the mixture so that relevant untrained labels rank above negative ones, both (B, C) bool."""
        start, scale = (torch.tensor(values).to(parts) for values in (START_WEIGHTS, WEIGHT_SCALE))
        mixture = softmax_weights(
            parts, relevant, negative, start, scale, lambda n: max(RIDGE, SMALL_SAMPLE / n)
        )
        return replace(self, mixture=mixture.cpu())


def _balanced_weights(relevance: csr_matrix) -> csr_matrix:
    """Return weights r / √(Σ r of the point · Σ r of the label), normalised: frequent ones count less."""
    pairs = csr_matrix(relevance, dtype=np.float64)
    rows, columns = (1 / np.sqrt(np.maximum(np.asarray(pairs.sum(axis)).ravel(), 1)) for axis in (1, 0))
    pairs = csr_matrix(diags(rows) @ pairs @ diags(columns))
    pairs.data /= pairs.data.sum()
    return pairs


def _kernel_coordinates(coordinates: Tensor, correlation: Tensor) -> Tensor:
    """Return the most correlated coordinates, scaled by √ρ."""
    return coordinates[:, :KERNEL_COORDINATES] * correlation[:KERNEL_COORDINATES].sqrt()


def _principal_components(centred: Tensor) -> Tensor:
    """Return the principal basis (H, k) of standardised columns (n, H), skipping rows with NaN.

    The components have unit variance on average. There are none if nothing varies.
    """
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
    """Return C^(−½) of a covariance shrunk towards a sphere, more strongly for fewer pairs."""
    k = len(covariance)
    if not k:
        return covariance
    shrinkage = (SHRINKAGE + k / max(1, pairs)) * covariance.trace() / k + 1e-9
    values, vectors = torch.linalg.eigh(covariance + shrinkage * torch.eye(k, dtype=covariance.dtype))
    root: Tensor = (vectors / values.sqrt()) @ vectors.T
    return root
