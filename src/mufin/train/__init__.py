"""Modules I–IV: pre-training, retrieval, transfer, fine-tuning."""
