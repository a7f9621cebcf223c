"""What a server counts, in the form that Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from edgerun.llm.replies.completion import Completion

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Counters of one server.

    Attributes:
        under_way: replies that run or wait.
        refused: replies that were not begun, because too many were under way.
    """

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "edgerun_requests", "Answers.", ["method", "path", "status"], registry=registry
        )
        self._replies = Counter(
            "edgerun_replies", "Replies by what ended them.", ["finish_reason"], registry=registry
        )
        self._prompt = Counter("edgerun_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._reused = Counter(
            "edgerun_reused_tokens", "Of those: found in the cache.", registry=registry
        )
        self._generated = Counter("edgerun_completion_tokens", "Of replies.", registry=registry)
        self._first = Histogram(
            "edgerun_first_token_seconds",
            "From a request to its first token.",
            buckets=SECONDS,
            registry=registry,
        )
        self._token = Histogram(
            "edgerun_token_seconds",
            "From a token to the next, the middle of a reply.",
            buckets=[bound / 50 for bound in SECONDS],
            registry=registry,
        )
        self.under_way = Gauge(
            "edgerun_replies_under_way", "Replies that run or wait.", registry=registry
        )
        self.refused = Counter(
            "edgerun_replies_refused", "Not begun: too many were under way.", registry=registry
        )

    def answered(self, method: str, path: str, status: int) -> None:
        """Counts an answer; ``path`` and ``method`` are of those that there are."""
        self._requests.labels(method, path, str(status)).inc()

    def count(self, completion: Completion) -> None:
        """Counts a reply that ended."""
        stats = completion.stats
        self._replies.labels(completion.finish_reason).inc()
        self._prompt.inc(completion.prompt_tokens)
        self._reused.inc(stats.reused_tokens)
        self._generated.inc(len(completion.ids))
        if completion.ids:
            self._first.observe(stats.first_token_s)
        if stats.decode_tokens_per_s:
            self._token.observe(1 / stats.decode_tokens_per_s)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)
