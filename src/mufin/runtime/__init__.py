"""What makes prediction and training fast on a device; imports nothing of ours."""
