"""Tiny checkpoints by what is special about them."""
