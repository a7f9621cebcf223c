"""Timings of one generation."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stats:
    """Filled while a generation runs; times in seconds.

    Attributes:
        prompt_tokens: tokens of the prompt, cached ones included.
        reused_tokens: how many of them were in the cache already.
        read_tokens: how many of them are in the cache by now.
        completion_tokens: tokens generated, without the one that ends the reply; at the end of a
            completion, those that it has, and not those behind a stop text.
        decode_steps: model calls behind the first token. Each makes a token, and another one for
            each drafted token that was right.
        drafted_tokens: tokens that were drafted (``edgerun/engine/drafting``).
        accepted_tokens: how many of them were right.
        prefill_s: time for the prompt, with that of other threads in between.
        decode_s: time from the first token to the last.
        first_token_s: time from the request to the first token.
        started: ``time.perf_counter()`` at the request.
    """

    prompt_tokens: int = 0
    reused_tokens: int = 0
    read_tokens: int = 0
    completion_tokens: int = 0
    decode_steps: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    def mark(self, *, first: bool) -> None:
        """Takes the time of a token."""
        elapsed = time.perf_counter() - self.started
        if first:
            self.first_token_s = elapsed
        self.decode_s = elapsed - self.first_token_s

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens computed, not reused, a second; 0 before any."""
        return _rate(self.prompt_tokens - self.reused_tokens, self.prefill_s)

    @property
    def decode_tokens(self) -> int:
        """Tokens sampled behind the first, one that ends the reply included."""
        return self.decode_steps + self.accepted_tokens

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens behind the first a second; 0 before any."""
        return _rate(self.decode_tokens, self.decode_s)

    @property
    def decode_calls_per_s(self) -> float:
        """Model calls behind the first token a second; 0 before any."""
        return _rate(self.decode_steps, self.decode_s)

    def timings(self) -> dict[str, float]:
        """Returns the times and speeds under the names that ``--json`` prints."""
        return {
            "first_token_s": round(self.first_token_s, 6),
            "prefill_s": round(self.prefill_s, 6),
            "decode_s": round(self.decode_s, 6),
            "prefill_tokens_per_s": round(self.prefill_tokens_per_s, 3),
            "decode_tokens_per_s": round(self.decode_tokens_per_s, 3),
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
        }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0
