"""Layers of experts: where their weights lie, which of them are in memory, and who brings them."""
