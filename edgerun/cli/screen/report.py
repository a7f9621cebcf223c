"""Numbers about speed and memory, as text and as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgerun.engine.stats import Stats
    from edgerun.llm.llm import LLM

SIMULATED = " (simulated: all speeds are those of the processor that is here)"


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """The most memory of this process that was in RAM at a time; what it is now if unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return resident_bytes()
    unit = 1 if sys.platform == "darwin" else 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return max(most, resident_bytes())  # the system brings the two up to date at different times


def streaming(llm: LLM, tokens_per_s: float) -> dict[str, Any]:
    """How fast decoding reads weights, compared with what memory can do."""
    from edgerun.machine.profile import machine_bandwidth

    limit = machine_bandwidth(llm.model.threads)
    speed = llm.model.weight_bytes * tokens_per_s
    return {
        "weight_bytes": llm.model.weight_bytes,
        "gb_per_s": round(speed / 1e9, 3),
        "memory_limit_gb_per_s": round(limit / 1e9, 3),
        "share_of_memory_limit": round(speed / limit, 4),
    }


def show_stats(llm: LLM, stats: Stats) -> None:
    """Prints a few lines on stderr."""
    for line in [*stats_lines(llm, stats), *report_lines(llm)]:
        print(line, file=sys.stderr)


def report_lines(llm: LLM) -> list[str]:
    """What devices counted, as tables."""
    from edgerun.cli.screen.tables import aligned

    lines: list[str] = []
    for report in llm.reports():
        lines += [report.title, *(f"  {line}" for line in (*aligned(report.rows), *report.notes))]
    return lines


def stats_lines(llm: LLM, stats: Stats) -> list[str]:
    """Speed and memory of the last generation, a line each, and back-ends that are unusual."""
    from edgerun.backends.registry import DEFAULT
    from edgerun.state.capacity import cached_bytes, fixed_bytes

    numbers = streaming(llm, stats.decode_calls_per_s)
    share, limit = numbers["share_of_memory_limit"], numbers["memory_limit_gb_per_s"]
    cached = cached_bytes(llm.model.states, stats.prompt_tokens + stats.decode_tokens)
    states = " and states" * bool(fixed_bytes(llm.model.states))
    reused = stats.reused_tokens
    more = f", {reused} more from the cache" if reused else ""
    backends = llm.model.backends
    names = ", ".join(f"{each.name}{SIMULATED * each.is_simulated}" for each in backends)
    unusual = (
        [f"back-ends    {names}; the usual one is {DEFAULT[0]}"]
        if {backend.name for backend in backends}.difference(DEFAULT)
        else []
    )
    drafted = stats.drafted_tokens
    drafts = [f"drafts       {stats.accepted_tokens} of {drafted} tokens right"] if drafted else []
    decode = (
        f"{stats.decode_tokens_per_s:.1f} tokens/s ({stats.completion_tokens} tokens)"
        if stats.decode_tokens
        else "none: the first token comes of the prompt"
    )
    weights = (
        f"weights      {numbers['gb_per_s']:.2f} GB/s, {share:.0%} of the measured limit of "
        f"{limit:.1f} GB/s"
    )
    return [
        *unusual,
        f"first token  {stats.first_token_s:.3f} s",
        f"prefill      {stats.prefill_tokens_per_s:.1f} tokens/s "
        f"({stats.prompt_tokens - reused} tokens{more})",
        f"decode       {decode}",
        *drafts,
        *([weights] if stats.decode_tokens else []),
        f"memory       {resident_bytes() / 1e6:.0f} MB resident, of which about "
        f"{llm.model.held_bytes / 1e6:.1f} MB weights and {cached / 1e6:.1f} MB KV cache{states}",
    ]
