"""Kernels of layers whose state has a fixed size."""
