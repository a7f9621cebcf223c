"""Decoders that multiply embedding, what layers add and logits by factors."""
