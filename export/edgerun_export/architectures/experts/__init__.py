"""Architectures with experts: likewise one file per ``model_type``."""
