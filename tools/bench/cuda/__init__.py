"""Measures a GPU of NVIDIA's."""
