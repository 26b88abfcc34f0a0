"""Files that are always complete: folders with a manifest, locks, tensors."""
