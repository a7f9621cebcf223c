"""Choosing: from logits to the next token."""

from edgerun.engine.chooser.chooser import Chooser, Distribution
from edgerun.engine.chooser.params import SamplingParams

__all__ = ["Chooser", "Distribution", "SamplingParams"]
