"""Checkpoints that keep tensors together, or in parts, as if each were there as it is."""
