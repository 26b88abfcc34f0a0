"""Items to bags: text and image encoders, their features, the embedder."""
