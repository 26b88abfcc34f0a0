"""Evaluation: metrics, baselines, confidence intervals, model comparison and the report."""
