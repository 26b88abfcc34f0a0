"""Turn items into bags: text and image encoders, cached features, the embedder."""
