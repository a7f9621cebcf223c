"""Kernels that treat each row, or each element, by itself."""
