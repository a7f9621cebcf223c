"""Sampling processors, one a file; see ``edgerun.engine.chooser.processor``."""
