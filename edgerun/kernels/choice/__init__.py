"""Kernels that choose a token from the logits of a row."""
