"""Ops that treat every row by itself, which few models have."""
