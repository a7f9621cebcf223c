"""Readers of what others write: device trees, configuration streams, signatures, listings."""
