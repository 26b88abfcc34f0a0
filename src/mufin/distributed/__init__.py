"""Work spread over the machines of a Ray cluster: predictions, embeddings, the feature cache."""
