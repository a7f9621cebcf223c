"""Writes what tests compare with; needs torch and transformers, which edgerun does not."""
