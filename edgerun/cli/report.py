"""Numbers about speed and memory, as text and as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgerun.engine.stats import Stats
    from edgerun.llm import LLM


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def memory_limit(threads: int) -> float | None:
    """Measured reading speed of memory in bytes a second; None where it cannot be measured."""
    try:
        from edgerun.profile import machine_bandwidth
    except ImportError:
        return None
    return float(machine_bandwidth(threads))


def streaming(llm: LLM, tokens_per_s: float) -> dict[str, Any]:
    """How fast decoding reads weights, compared with what memory can do."""
    limit = memory_limit(llm.model.threads)
    speed = llm.model.weight_bytes * tokens_per_s
    return {
        "weight_bytes": llm.model.weight_bytes,
        "gb_per_s": round(speed / 1e9, 3),
        "memory_limit_gb_per_s": None if limit is None else round(limit / 1e9, 3),
        "share_of_memory_limit": None if not limit else round(speed / limit, 4),
    }


def show_stats(llm: LLM, stats: Stats) -> None:
    """Prints a few lines on stderr."""
    for line in stats_lines(llm, stats):
        print(line, file=sys.stderr)


def stats_lines(llm: LLM, stats: Stats) -> list[str]:
    """Speed and memory of the last generation, a line each."""
    numbers = streaming(llm, stats.decode_tokens_per_s)
    share = numbers["share_of_memory_limit"]
    limit = numbers["memory_limit_gb_per_s"]
    of_limit = "" if share is None else f", {share:.0%} of the measured limit of {limit:.1f} GB/s"
    cached = llm.model.cache_spec.bytes_per_token * (stats.prompt_tokens + stats.decode_steps)
    computed = stats.prompt_tokens - stats.reused_tokens
    return [
        f"first token  {stats.first_token_s:.3f} s",
        f"prefill      {stats.prefill_tokens_per_s:.1f} tokens/s "
        f"({computed} tokens, {stats.reused_tokens} more from the cache)",
        f"decode       {stats.decode_tokens_per_s:.1f} tokens/s ({stats.completion_tokens} tokens)",
        f"weights      {numbers['gb_per_s']:.2f} GB/s{of_limit}",
        f"memory       {resident_bytes() / 1e6:.0f} MB resident, of which about "
        f"{llm.model.weight_bytes / 1e6:.1f} MB weights and {cached / 1e6:.1f} MB KV cache",
    ]
