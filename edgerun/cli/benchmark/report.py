"""What ``edgerun bench`` says: each phase against the limits of the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Launches
from edgerun.backends.figures import ExpertReads
from edgerun.engine.stats import Stats
from edgerun.machine.profile import MachineProfile
from edgerun.state.capacity import cached_bytes, fixed_bytes, moved_bytes, token_bytes

if TYPE_CHECKING:
    from edgerun.llm.llm import LLM


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of both phases.

    Attributes:
        prefill: timings of the prompt.
        decode: timings of the tokens after it, or at the end of the context.
        native_s: seconds inside native programs by phase, where the back-end counts them.
        reads: what became of experts by phase, where not all are in memory.
    """

    prefill: Stats
    decode: Stats
    native_s: dict[str, float]
    reads: dict[str, ExpertReads] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase did in a run.

    Attributes:
        tokens: computed.
        calls: of its executable.
        seconds: median over the runs.
        native_s: of those inside native programs, median.
        read_bytes: weights, keys and values, and states of fixed size, read and written.
        macs: multiply-adds.
    """

    tokens: int
    calls: int
    seconds: float
    native_s: float
    read_bytes: int
    macs: int


def summary(llm: LLM, runs: list[Run], load_s: float) -> dict[str, Any]:
    """What ``--json`` prints; the names are a contract."""
    from edgerun import __version__
    from edgerun.cli.screen.report import peak_bytes, resident_bytes, streaming
    from edgerun.plan.calibration.processor import limits

    resident, peak = resident_bytes(), peak_bytes()  # measuring limits below takes memory
    model, threads = llm.model, llm.model.threads
    measured = limits(threads)
    profile = measured.profile
    decode = median(run.decode.decode_tokens_per_s for run in runs)
    paths = [path for counters in model.programs.launches.values() for path in counters.paths]
    multiply = profile.peak(threads, paths)
    return {
        "edgerun": __version__,
        "model": str(model.path),
        "threads": threads,
        "backends": [backend.name for backend in model.backends],
        "prompt_tokens": runs[0].prefill.prompt_tokens,
        "new_tokens": runs[0].decode.completion_tokens,
        "context_tokens": _end(runs[0].decode),
        "runs": len(runs),
        "load_s": round(load_s, 3),
        "first_token_s": round(median(run.prefill.first_token_s for run in runs), 6),
        "prefill_tokens_per_s": round(median(run.prefill.prefill_tokens_per_s for run in runs), 3),
        "decode_tokens_per_s": round(decode, 3),
        **streaming(llm, decode),
        "memory_now_gb_per_s": round(measured.memory_bytes_s / 1e9, 3),
        "limits_disturbed_by": measured.disturbance or None,
        "int8_peak_tops": None if multiply is None else round(2e-12 * multiply, 4),
        "resident_bytes": resident,
        "phases": {
            "prefill": phase_figures(llm, "prefill", prefill_work(llm, runs), profile),
            "decode": phase_figures(llm, "decode", decode_work(llm, runs), profile),
        },
        "memory": memory(llm, runs[0], resident, peak),
        "experts": expert_figures(llm, runs),
    }


def prefill_work(llm: LLM, runs: list[Run]) -> Work:
    """What computing the prompt took; every chunk reads all weights."""
    tokens = runs[0].prefill.prompt_tokens
    chunks = -(-tokens // llm.model.chunk_rows)
    return Work(
        tokens=tokens,
        calls=chunks,
        seconds=median(run.prefill.prefill_s for run in runs),
        native_s=median(run.native_s.get("prefill", 0.0) for run in runs),
        read_bytes=(llm.model.weight_bytes + moved_bytes(llm.model.states)) * chunks,
        macs=llm.model.workload.macs(tokens, 1, 0),
    )


def decode_work(llm: LLM, runs: list[Run]) -> Work:
    """What the steps after the first token took; a step reads all weights and the whole cache.

    States of fixed size are written besides.
    """
    steps, start = runs[0].decode.decode_steps, runs[0].decode.prompt_tokens
    cached = token_bytes(llm.model.states) * (start * steps + steps * (steps + 1) // 2)
    return Work(
        tokens=steps,
        calls=steps,
        seconds=median(run.decode.decode_s for run in runs),
        native_s=median(run.native_s.get("decode", 0.0) for run in runs),
        read_bytes=(llm.model.weight_bytes + moved_bytes(llm.model.states)) * steps + cached,
        macs=sum(llm.model.workload.macs(1, 1, start + step) for step in range(steps)),
    )


def phase_figures(llm: LLM, phase: str, work: Work, profile: MachineProfile) -> dict[str, Any]:
    """A phase against what the machine can do.

    ``gb_per_s`` counts weights and cached keys and values; ``tops`` two operations for each
    multiply-add of linear layers and attention. The peak is that of the paths that the phase's
    kernels take, see ``MachineProfile.peak``.
    """
    seconds, threads = max(work.seconds, 1e-9), llm.model.threads
    counted = llm.model.programs.launches.get(phase)
    paths = counted.paths if counted else ()
    peak = profile.peak(threads, paths)
    speed = work.read_bytes / seconds
    return {
        "tokens": work.tokens,
        "tokens_per_s": round(work.tokens / seconds, 3),
        "calls": work.calls,
        "gb_per_s": round(speed / 1e9, 3),
        "share_of_memory_limit": round(speed / profile.read_speed(threads), 4),
        "tops": round(2e-12 * work.macs / seconds, 5),
        "paths": list(paths),
        "int8_peak_tops": round(2e-12 * peak, 4) if peak else None,
        "share_of_int8_peak": round(work.macs / seconds / peak, 4) if peak else None,
        "launch": launch(llm, counted, work, profile.instruction_s(threads)),
    }


def launch(llm: LLM, counted: Launches | None, work: Work, wait_s: float) -> dict[str, Any] | None:
    """What a call costs besides its kernels; None where the back-end does not count it.

    ``python_us`` is spent outside the native program, sampling included. ``fork_join_us`` is the
    number of instructions that all threads wait for, times what one such wait was measured to
    cost: the kernels' own time cannot be taken without slowing them. Being an estimate, it is held
    to the time that the program took.
    """
    if counted is None or not counted.runs:
        return None
    python = max(0.0, work.seconds - work.native_s) / work.calls
    waits = min(counted.waits * wait_s, min(work.native_s, work.seconds) / work.calls)
    layers = max(1, llm.model.workload.layers)
    return {
        "instructions": counted.instructions,
        "waits": counted.waits,
        "python_us": round(python * 1e6, 2),
        "fork_join_us": round(waits * 1e6, 2),
        "us_per_layer": round((python + waits) * 1e6 / layers, 3),
        "share": round((python + waits) * work.calls / max(work.seconds, 1e-9), 4),
    }


def expert_figures(llm: LLM, runs: list[Run]) -> dict[str, Any] | None:
    """What was really read of experts, beside the forecast; None where all are in memory."""
    expected = llm.forecast()
    if expected is None:
        return None
    figures: dict[str, Any] = {"forecast_tokens_per_s": round(1 / expected.token_s, 3)}
    for phase in ("prefill", "decode"):
        reads = [run.reads[phase] for run in runs]
        stats = [getattr(run, phase) for run in runs]
        seconds = max(sum(each.prefill_s + each.decode_s for each in stats), 1e-9)
        tokens = sum(each.prompt_tokens - each.reused_tokens + each.decode_steps for each in stats)
        nbytes, hits = sum(each.read_bytes for each in reads), sum(each.hits for each in reads)
        figures[phase] = {
            "hit_share": round(hits / max(1, hits + sum(each.misses for each in reads)), 4),
            "read_bytes_a_token": round(nbytes / max(1, tokens)),
            "disk_gb_per_s": round(nbytes / 1e9 / seconds, 3),
            "waited_share": round(sum(each.waited_s for each in reads) / seconds, 4),
        }
    return figures


def memory(llm: LLM, run: Run, resident: int, peak: int) -> dict[str, int]:
    """Bytes of this process: in RAM, at most, weights in memory, keys, values and states."""
    longest = max(_end(run.decode), run.prefill.prompt_tokens)
    weights, cached = llm.model.held_bytes, cached_bytes(llm.model.states, longest)
    return {
        "resident_bytes": resident,
        "peak_bytes": peak,
        "weight_bytes": weights,
        "kv_bytes": cached,
        "state_bytes": fixed_bytes(llm.model.states),
        "other_bytes": peak - weights - cached,
    }


def _end(stats: Stats) -> int:
    """Tokens in the cache when decoding ended."""
    return stats.prompt_tokens + stats.decode_steps


def as_text(figures: dict[str, Any]) -> str:
    """What a person sees: one table, and what it is held against."""
    from edgerun.cli.screen.tables import aligned, size, without_empty_columns

    used, threads = figures["memory"], figures["threads"]
    lines = [
        f"{figures['model']}: {threads} thread{'' if threads == 1 else 's'}, "
        f"back-ends {', '.join(figures['backends'])}, "
        f"context up to {figures['context_tokens']} tokens",
        "",
        *aligned(without_empty_columns([_row(figures, phase) for phase in figures["phases"]])),
        "",
        f"limits: memory is read at {figures['memory_limit_gb_per_s']:.1f} GB/s, "
        f"{figures['memory_now_gb_per_s']:.1f} right after the runs; int8 products made at "
        f"{_peaks(figures)}",
        _disturbance_line(figures),
        f"memory: {size(used['peak_bytes'])} at most, {size(used['weight_bytes'])} of it weights "
        f"and {size(used['kv_bytes'])} keys and values{_states(used['state_bytes'])}",
        _expert_line(figures),
    ]
    return "\n".join(line for line in lines if line is not None)


def _states(nbytes: int) -> str:
    from edgerun.cli.screen.tables import size

    return f", {size(nbytes)} of that states" if nbytes else ""


def _disturbance_line(figures: dict[str, Any]) -> str | None:
    disturbance = figures["limits_disturbed_by"]
    if disturbance is None:
        return None
    return f"        the machine was busy, so they are too low and not stored: {disturbance}"


def _expert_line(figures: dict[str, Any]) -> str | None:
    from edgerun.cli.screen.tables import size

    experts = figures["experts"]
    if experts is None:
        return None
    decode, prefill = experts["decode"], experts["prefill"]
    return (
        f"experts: in decoding {decode['hit_share']:.0%} were in memory when they were needed, "
        f"{size(decode['read_bytes_a_token'])} read for a token at {decode['disk_gb_per_s']:.2f} "
        f"GB/s, {decode['waited_share']:.0%} of the time waited for; forecast "
        f"{experts['forecast_tokens_per_s']:.3g} tokens/s; in a prompt "
        f"{size(prefill['read_bytes_a_token'])} a token at {prefill['disk_gb_per_s']:.2f} GB/s"
    )


def _peaks(figures: dict[str, Any]) -> str:
    """The peak of each phase, once if they are the same, and the paths that have it."""
    peaks: dict[str, list[str]] = {}
    for phase, part in figures["phases"].items():
        paths = ", ".join(part["paths"]) or "all paths"
        peaks.setdefault(f"{part['int8_peak_tops'] or 0:.3f} TOPS ({paths})", []).append(phase)
    if len(peaks) == 1:
        return next(iter(peaks))
    return ", ".join(f"{peak} in {' and '.join(phases)}" for peak, phases in peaks.items())


def _row(figures: dict[str, Any], phase: str) -> dict[str, Any]:
    """A phase's line of the table; ``overhead`` is the part of a call outside of kernels."""
    part = figures["phases"][phase]
    share, launched = part["share_of_int8_peak"], part["launch"]
    return {
        "phase": phase,
        "tokens": part["tokens"],
        "tokens/s": f"{figures[f'{phase}_tokens_per_s']:.1f}",
        "GB/s": f"{part['gb_per_s']:.2f}",
        "of memory": f"{part['share_of_memory_limit']:.0%}",
        "TOPS": f"{part['tops']:.3f}",
        "of peak": "" if share is None else f"{share:.0%}",
        "overhead": "" if launched is None else f"{launched['share']:.0%}",
    }
