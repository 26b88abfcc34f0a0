"""Modules I–IV: pre-training, retrieval, transfer and fine-tuning."""
