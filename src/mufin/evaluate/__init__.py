"""How good a model is: metrics over a split, baselines, popularity bins."""

from mufin.evaluate.score import Predictions, answer, evaluate, predict

__all__ = ["Predictions", "answer", "evaluate", "predict"]
