"""Decoders with layers of state space duality (Mamba-2): Granite 4 and others."""
