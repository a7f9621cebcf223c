"""Kernels that do no useful work: they are timed to know the machine."""
