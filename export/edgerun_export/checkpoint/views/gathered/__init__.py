"""Tensors that checkpoints store as several, one behind the other."""
