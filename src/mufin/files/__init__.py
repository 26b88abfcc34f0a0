"""Crash-safe files: folders with a manifest, locks, tensors."""
