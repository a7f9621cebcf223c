"""Trains the default model; README.md tells how."""
