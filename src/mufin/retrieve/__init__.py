"""Vectors to a shortlist of unique labels."""
