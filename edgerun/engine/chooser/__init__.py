"""Choosing: from logits to the next token."""
