"""Architectures without experts: likewise one file per ``model_type``."""
