"""Sampling: from logits to the next token."""

from edgerun.engine.sampling.base import History
from edgerun.engine.sampling.params import SamplingParams
from edgerun.engine.sampling.sampler import Sampler, make_sampler

__all__ = ["History", "Sampler", "SamplingParams", "make_sampler"]
