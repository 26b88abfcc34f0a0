"""The trained model: what it knows, what it answers, how it is stored."""
