"""Shortlist to scores: cross-attention and one-vs-all classifiers."""
