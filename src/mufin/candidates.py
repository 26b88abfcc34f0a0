"""Candidates: the labels a query is ranked over — its shortlist, and what its memory votes for."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F


def marked(labels: Tensor, relation: csr_matrix) -> Tensor:
    """Which label rows (B, K) stand in the relation (B, L), bool; −1 never does."""
    columns = labels.cpu().numpy().ravel()
    rows = np.repeat(np.arange(len(labels)), labels.shape[1])
    found = np.asarray(relation[rows, np.maximum(columns, 0)]).ravel().astype(bool) & (columns >= 0)
    return torch.from_numpy(found.reshape(labels.shape)).to(labels.device)


def eligible_votes(
    voted: Tensor, votes: Tensor, width: int, exclude: csr_matrix | None, allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """The `width` largest votes (B, V) for labels that may be shown; −1 and 0 elsewhere."""
    shown = (voted >= 0) & allowed[voted.clamp(min=0)]
    if exclude is not None and exclude.nnz:
        shown &= ~marked(voted, exclude)
    order = torch.where(shown, votes, -1.0).argsort(dim=1, descending=True, stable=True)[:, :width]
    kept = shown.gather(1, order)
    labels, votes = voted.gather(1, order).where(kept, -1), votes.gather(1, order).where(kept, 0.0)
    missing = width - labels.shape[1]
    return F.pad(labels, (0, missing), value=-1), F.pad(votes, (0, missing))


def overlap(queries: csr_matrix, labels: csr_matrix, candidates: Tensor) -> Tensor:
    """⟨v, v_l⟩ (B, K): the words of queries (B, V) and of their candidates (B, K), rows of labels (L, V)."""
    rows = np.maximum(candidates.cpu().numpy(), 0)
    query = np.repeat(np.arange(len(rows)), rows.shape[1])
    shared = queries[query].multiply(labels[rows.ravel()]).sum(axis=1)
    found = torch.from_numpy(np.asarray(shared, np.float32).reshape(rows.shape)).to(candidates.device)
    return found.masked_fill(candidates < 0, 0.0)


def merge(shortlist: Tensor, voted: Tensor, votes: Tensor) -> tuple[Tensor, Tensor]:
    """Shortlist (B, R) and voted labels (B, V) as unique candidates (B, R + V), and the votes of each.

    >>> merge(torch.tensor([[4, 7]]), torch.tensor([[7, 2]]), torch.tensor([[0.75, 0.25]]))
    (tensor([[ 4,  7, -1,  2]]), tensor([[0.0000, 0.7500, 0.0000, 0.2500]]))
    """
    same = (shortlist[:, :, None] == voted[:, None, :]) & (shortlist >= 0)[:, :, None]  # (B, R, V)
    known = same.any(dim=1)  # (B, V): already in the shortlist
    of_shortlist = (same * votes[:, None, :]).sum(dim=2)
    labels = torch.cat([shortlist, voted.masked_fill(known, -1)], dim=1)
    return labels, torch.cat([of_shortlist, votes.masked_fill(known, 0.0)], dim=1)
