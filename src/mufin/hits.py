"""What a model answers: hits for people, rows of numbers for programs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hit:
    """A recommended label, with the parts of its score.

    With the paper's settings score = β · classifier + (1 − β) · similarity; else a mixture learnt on held-out
    points, in which the memory takes part.
    """

    label: str
    score: float  # s
    similarity: float  # a
    classifier: float  # c
    memory: float  # m, the votes of the nearest training points
    words: float  # the votes of training points with like words
    titles: float  # what m lacks: votes for a label that only the titles of those points say
    titles_by_words: float  # the same of points with like words
    overlap: float  # how alike the words of item and label are; 1 if the item's title says the label
    meaning: float  # how alike title and label are to the text encoder before it was trained
    probability: float  # that the label is relevant, calibrated on held-out points
    text: str = ""

    def __str__(self) -> str:
        return f"{self.probability:4.0%}  {self.label}  {self.text}"


@dataclass(frozen=True)
class Ranked:
    """Label rows (B, k), best first, −1 where fewer are eligible; and what `Hit` has, (B, k) each."""

    labels: Tensor
    score: Tensor
    similarity: Tensor
    classifier: Tensor
    memory: Tensor
    words: Tensor
    titles: Tensor
    titles_by_words: Tensor
    overlap: Tensor
    meaning: Tensor
    probability: Tensor

    @staticmethod
    def join(parts: list[Ranked]) -> Ranked:
        return Ranked(*(torch.cat(same) for same in zip(*(vars(p).values() for p in parts), strict=True)))

    @staticmethod
    def nothing(n: int, device: torch.device) -> Ranked:
        none = torch.zeros(n, 0, device=device)
        return Ranked(none.long(), *[none] * 10)
