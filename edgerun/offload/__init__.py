"""Experts that do not all fit: what was asked of them, and which of them stay where it is fast."""
