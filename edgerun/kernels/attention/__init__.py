"""Kernels of causal attention over the paged cache."""
