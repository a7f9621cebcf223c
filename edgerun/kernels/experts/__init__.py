"""Layers of experts: who goes where, and the sum of what comes back."""
