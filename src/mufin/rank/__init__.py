"""Score a shortlist with cross-attention and one-vs-all classifiers."""
