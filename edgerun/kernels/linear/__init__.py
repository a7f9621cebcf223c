"""Kernels of linear layers over low-bit weights."""
