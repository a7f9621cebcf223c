"""Translations of the ops of the same folder of ``edgerun.ops``."""
