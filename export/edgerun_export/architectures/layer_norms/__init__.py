"""Decoders whose norms subtract the mean (layer norms)."""
