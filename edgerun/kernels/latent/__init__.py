"""Kernels around attention to latent rows."""
