"""Search: from query vectors to a shortlist of unique labels."""
