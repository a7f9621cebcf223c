"""What ``edgerun bench`` says: each phase against the limits of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Counts, Launches
from edgerun.engine.stats import Stats
from edgerun.profile import MachineProfile

if TYPE_CHECKING:
    from edgerun.llm import LLM


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of both phases.

    Attributes:
        prefill: timings of the prompt.
        decode: timings of the tokens after it, or at the end of the context.
        native_s: seconds inside native programs by phase, where the back-end counts them.
    """

    prefill: Stats
    decode: Stats
    native_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase did in a run.

    Attributes:
        tokens: computed.
        calls: of its executable.
        seconds: median over the runs.
        native_s: of those inside native programs, median.
        read_bytes: weights, keys and values.
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
    from edgerun.calibration import limits
    from edgerun.cli.report import peak_bytes, resident_bytes, streaming

    resident, peak = resident_bytes(), peak_bytes()  # measuring limits below takes memory
    model, threads = llm.model, llm.model.threads
    measured = limits(threads)
    profile = measured.profile
    decode = median(run.decode.decode_tokens_per_s for run in runs)
    multiply = profile.peak(threads, [path for one in launches(llm).values() for path in one.paths])
    return {
        "edgerun": __version__,
        "model": str(model.path),
        "threads": threads,
        "backends": list(model.backends),
        "prompt_tokens": runs[0].prefill.prompt_tokens,
        "new_tokens": runs[0].decode.completion_tokens,
        "context_tokens": _end(runs[0].decode),
        "runs": len(runs),
        "load_s": round(load_s, 3),
        "first_token_s": round(median(run.prefill.first_token_s for run in runs), 6),
        "prefill_tokens_per_s": round(median(run.prefill.prefill_tokens_per_s for run in runs), 3),
        "decode_tokens_per_s": round(decode, 3),
        **streaming(llm, decode),
        "limits_disturbed_by": measured.disturbance or None,
        "int8_peak_tops": None if multiply is None else round(2e-12 * multiply, 4),
        "resident_bytes": resident,
        "phases": {
            "prefill": phase_figures(llm, "prefill", prefill_work(llm, runs), profile),
            "decode": phase_figures(llm, "decode", decode_work(llm, runs), profile),
        },
        "memory": memory(llm, runs[0], resident, peak),
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
        read_bytes=llm.model.weight_bytes * chunks,
        macs=llm.model.workload.macs(tokens, 1, 0),
    )


def decode_work(llm: LLM, runs: list[Run]) -> Work:
    """What the steps after the first token took; a step reads all weights and the whole cache."""
    steps, start = runs[0].decode.decode_steps, runs[0].decode.prompt_tokens
    cached = llm.model.cache_spec.bytes_per_token * (start * steps + steps * (steps + 1) // 2)
    return Work(
        tokens=steps,
        calls=steps,
        seconds=median(run.decode.decode_s for run in runs),
        native_s=median(run.native_s.get("decode", 0.0) for run in runs),
        read_bytes=llm.model.weight_bytes * steps + cached,
        macs=sum(llm.model.workload.macs(1, 1, start + step) for step in range(steps)),
    )


def phase_figures(llm: LLM, phase: str, work: Work, profile: MachineProfile) -> dict[str, Any]:
    """A phase against what the machine can do.

    ``gb_per_s`` counts weights and cached keys and values; ``tops`` two operations for each
    multiply-add of linear layers and attention. The peak is that of the paths that the phase's
    kernels take, see ``MachineProfile.peak``.
    """
    seconds, threads = max(work.seconds, 1e-9), llm.model.threads
    counted = launches(llm).get(phase)
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
    cost: the kernels' own time cannot be taken without slowing them.
    """
    if counted is None or not counted.runs:
        return None
    python = max(0.0, work.seconds - work.native_s) / work.calls
    waits = counted.waits * wait_s
    layers = max(1, llm.model.workload.layers)
    return {
        "instructions": counted.instructions,
        "waits": counted.waits,
        "python_us": round(python * 1e6, 2),
        "fork_join_us": round(waits * 1e6, 2),
        "us_per_layer": round((python + waits) * 1e6 / layers, 3),
        "share": round((python + waits) * work.calls / max(work.seconds, 1e-9), 4),
    }


def launches(llm: LLM) -> dict[str, Launches]:
    """Counters of the executables by phase, of those that have them."""
    executables = llm.model.executables.items()
    return {phase.value: one.launches for phase, one in executables if isinstance(one, Counts)}


def memory(llm: LLM, run: Run, resident: int, peak: int) -> dict[str, int]:
    """Bytes of this process: in RAM, at most, weights that a step reads, keys and values."""
    longest = max(_end(run.decode), run.prefill.prompt_tokens)
    weights, cached = llm.model.weight_bytes, llm.model.cache_spec.bytes_per_token * longest
    return {
        "resident_bytes": resident,
        "peak_bytes": peak,
        "weight_bytes": weights,
        "kv_bytes": cached,
        "other_bytes": peak - weights - cached,
    }


def _end(stats: Stats) -> int:
    """Tokens in the cache when decoding ended."""
    return stats.prompt_tokens + stats.decode_steps


def as_text(found: dict[str, Any]) -> str:
    """What a person sees."""
    from edgerun.cli.tables import size

    used = found["memory"]
    lines = [
        _phase_line(found, "prefill", f"{found['prompt_tokens']} tokens"),
        _phase_line(
            found,
            "decode",
            f"{found['new_tokens']} tokens, context up to {found['context_tokens']}",
        ),
        f"limits   {found['memory_limit_gb_per_s']:.1f} GB/s from memory, "
        f"{_peaks(found)} TOPS int8, measured with these threads",
        _disturbance_line(found),
        *(_launch_line(phase, part["launch"]) for phase, part in found["phases"].items()),
        f"weights  {size(found['weight_bytes'])} a token",
        f"memory   {size(used['resident_bytes'])} resident, {size(used['peak_bytes'])} at most: "
        f"{size(used['weight_bytes'])} weights, {size(used['kv_bytes'])} KV cache, "
        f"{size(max(0, used['other_bytes']))} other",
        f"threads  {found['threads']}, back-ends {', '.join(found['backends'])}",
    ]
    return "\n".join(line for line in lines if line)


def _disturbance_line(found: dict[str, Any]) -> str:
    disturbance = found["limits_disturbed_by"]
    if disturbance is None:
        return ""
    return f"         machine was busy, so they are too low and not stored: {disturbance}"


def _peaks(found: dict[str, Any]) -> str:
    """The peak of each phase, and the paths that have it."""
    texts = [
        f"{phase} {part['int8_peak_tops'] or 0:.3f} ({', '.join(part['paths']) or 'all paths'})"
        for phase, part in found["phases"].items()
    ]
    return ", ".join(texts)


def _phase_line(found: dict[str, Any], phase: str, what: str) -> str:
    part = found["phases"][phase]
    share = part["share_of_int8_peak"]
    return (
        f"{phase:<8} {found[f'{phase}_tokens_per_s']:.1f} tokens/s ({what}), "
        f"{part['gb_per_s']:.2f} GB/s ({part['share_of_memory_limit']:.0%} of the limit), "
        f"{part['tops']:.3f} TOPS ({'?' if share is None else f'{share:.0%}'} of the peak)"
    )


def _launch_line(phase: str, part: dict[str, Any] | None) -> str:
    if part is None:
        return ""
    return (
        f"launch   {phase}: {part['python_us']:.0f} us outside the program and about "
        f"{part['fork_join_us']:.0f} us of waiting in it ({part['instructions']} instructions, "
        f"{part['waits']} waits), {part['share']:.1%} of a call, {part['us_per_layer']:.1f} us "
        "a layer"
    )
