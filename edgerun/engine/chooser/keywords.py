"""``SamplingParams`` as keyword arguments, for type checkers.

Written by ``python -m tools.ci.sampling_options``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from edgerun.engine.chooser.processor import Processor


class SamplingKeywords(TypedDict, total=False):
    """What may be asked of a reply; see docs/python.md."""

    max_tokens: int | None
    thinking_budget: int | None
    stop: str | Sequence[str]
    stop_ids: Iterable[int]
    ignore_eos: bool
    seed: int | None
    logprobs: int | None
    json_schema: Mapping[str, Any] | bool | str | None
    regex: str | None
    grammar: str | None
    logit_bias: Mapping[int, float]
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    processors: Iterable[Processor]
