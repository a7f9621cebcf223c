"""Layers of a reply that are shared inside the processor's program, without Python in between."""
