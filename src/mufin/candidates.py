"""Candidates: the labels a query is ranked over — its shortlist, and what its memory votes for."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional as F

from mufin.bag import PackedBags


def marked(labels: Tensor, relation: csr_matrix) -> Tensor:
    """Which label rows (B, K) stand in the relation (B, L), bool; −1 never does."""
    columns = labels.cpu().numpy().ravel()
    rows = np.repeat(np.arange(len(labels)), labels.shape[1])
    found = np.asarray(relation[rows, np.maximum(columns, 0)]).ravel().astype(bool) & (columns >= 0)
    return torch.from_numpy(found.reshape(labels.shape)).to(labels.device)


def eligible_votes(
    voted: Tensor, votes: Tensor, width: int, exclude: csr_matrix | None, allowed: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The `width` largest votes (B, V) for labels that may be shown; −1 and 0 elsewhere."""
    shown = voted >= 0
    if allowed is not None:
        shown &= allowed[voted.clamp(min=0)]
    if exclude is not None and exclude.nnz and voted.numel():
        shown &= ~marked(voted, exclude)
    order = torch.where(shown, votes, -1.0).argsort(dim=1, descending=True, stable=True)[:, :width]
    kept = shown.gather(1, order)
    return voted.gather(1, order).where(kept, -1), votes.gather(1, order).where(kept, 0.0)


def overlap(queries: csr_matrix, labels: csr_matrix, candidates: Tensor) -> Tensor:
    """⟨v, v_l⟩ (B, K): the words of queries (B, V) and of their candidates (B, K), rows of labels (L, V)."""
    rows = np.maximum(candidates.cpu().numpy(), 0)
    found = np.zeros(rows.shape, np.float32)
    spread = np.zeros(queries.shape[1], np.float32)  # one query at a time, zero where it has no word
    for query, chosen in enumerate(rows):
        own = slice(queries.indptr[query], queries.indptr[query + 1])
        spread[queries.indices[own]] = queries.data[own]
        found[query] = labels[chosen] @ spread
        spread[queries.indices[own]] = 0
    return torch.from_numpy(found).to(candidates.device).masked_fill(candidates < 0, 0.0)


def shared_words(
    words: csr_matrix | None, titles: csr_matrix | None, of: PackedBags, candidates: Tensor
) -> Tensor:
    """o (B, K): how alike the words of queries and their candidates (B, K), rows of labels, are.

    1 where the title of a query has all words of the label's: what an item says of itself, a catalogue may
    always list among its labels, or never.
    """
    if words is None or of.words is None:
        return torch.zeros(candidates.shape, device=candidates.device)
    alike = overlap(words, of.words, candidates)
    if titles is None or of.titles is None:  # of a model before titles were kept
        return alike
    return alike.masked_fill(said(titles, of.titles, candidates), 1.0)


def meant(meaning: Tensor | None, of: PackedBags, candidates: Tensor) -> Tensor:
    """t (B, K): ⟨t, t_l⟩ of the meanings of queries (B, H) and of their candidates (B, K), rows of labels."""
    if meaning is None or of.meaning is None:
        return torch.zeros(candidates.shape, device=candidates.device)
    found = F.embedding(candidates.clamp(min=0), of.meaning).float()  # (B, K, H)
    return torch.bmm(found, meaning.float()[..., None])[..., 0].masked_fill(candidates < 0, 0.0)


def said(titles: csr_matrix, labels: csr_matrix, candidates: Tensor) -> Tensor:
    """(B, K) bool: has the title of a query (B, V) all words of its candidate's, a row of labels (L, V)?"""
    rows = np.maximum(candidates.cpu().numpy(), 0)
    words = torch.from_numpy(labels.indptr[rows + 1] - labels.indptr[rows]).to(candidates.device)  # (B, K)
    return (overlap(titles, labels, candidates) >= words) & (words > 0) & (candidates >= 0)


def merge(shortlist: Tensor, *voted: tuple[Tensor, Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Shortlist (B, R) and labels voted for in several ways (B, V) as unique candidates (B, K), R of them
    first; and the votes of each way for each, (B, K).

    >>> merge(torch.tensor([[4, 7]]), (torch.tensor([[7, 2]]), torch.tensor([[0.75, 0.25]])))
    (tensor([[4, 7, 2]]), [tensor([[0.0000, 0.7500, 0.2500]])])
    """
    every = torch.cat([shortlist, *(labels for labels, _ in voted)], dim=1)
    # Of equal labels the earliest stands for all; sorted, they lie side by side.
    ordered, place = every.sort(dim=1, stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    columns = torch.arange(every.shape[1], device=every.device)
    begun = columns.where(fresh, 0).cummax(dim=1).values  # where the run of each label starts
    owner = torch.empty_like(place).scatter_(1, place, place.gather(1, begun))  # (B, R + ΣV)
    labels = every.masked_fill(owner != columns, -1)
    votes, last = [], shortlist.shape[1]
    for some, cast in voted:
        first, last = last, last + some.shape[1]
        votes.append(torch.zeros(every.shape, device=cast.device).scatter_add_(1, owner[:, first:last], cast))
    # Behind the shortlist mostly −1 is left: what is there moves to the left, and columns of nothing go.
    there = labels[:, shortlist.shape[1] :] >= 0
    kept = there.sort(dim=1, descending=True, stable=True).indices[:, : int(there.sum(1).max())]
    kept = torch.cat([columns[: shortlist.shape[1]].expand(len(every), -1), kept + shortlist.shape[1]], dim=1)
    return labels.gather(1, kept), [cast.gather(1, kept) for cast in votes]
