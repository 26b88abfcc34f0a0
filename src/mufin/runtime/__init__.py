"""Fast prediction and training on a device; imports nothing else from mufin."""
