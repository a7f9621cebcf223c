"""Decoders whose experts are chosen by sigmoids, beside a network that all tokens go through."""
