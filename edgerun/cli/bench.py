"""``edgerun bench``: how fast a model runs on this machine, and how fast it could."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options

if TYPE_CHECKING:
    from edgerun.engine.stats import Stats
    from edgerun.llm import LLM


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", help="Measure the speed of a model.")(bench)


def bench(
    model: options.Model = None,
    prompt_tokens: Annotated[
        int, typer.Option("-p", "--prompt-tokens", help="Length of the prompt.", min=1)
    ] = 128,
    new_tokens: Annotated[
        int, typer.Option("-n", "--new-tokens", help="Tokens to generate.", min=2)
    ] = 64,
    repeat: Annotated[int, typer.Option("--repeat", help="Runs; the median counts.", min=1)] = 3,
    threads: options.Threads = None,
    backend: options.BackendName = None,
    context: options.Context = None,
    kv_cache: options.KVCacheType = "fp16",
    as_json: options.Json = False,
) -> None:
    """Runs the command; the parameters are the options."""
    began = time.perf_counter()
    loading = {"threads": threads, "backend": backend, "context": context, "kv_cache": kv_cache}
    with options.load(model, **loading) as llm:
        load_s = time.perf_counter() - began
        runs = [_one_run(llm, prompt_tokens, new_tokens, index) for index in range(repeat + 1)]
        found = summary(llm, runs[1:], load_s)  # the first one warms up
    print(json.dumps(found) if as_json else _as_text(found))


def summary(llm: LLM, runs: list[Stats], load_s: float) -> dict[str, Any]:
    """What ``--json`` prints; the names are a contract."""
    from edgerun import __version__
    from edgerun.cli.report import resident_bytes, streaming

    decode = statistics.median(run.decode_tokens_per_s for run in runs)
    prefill = statistics.median(run.prefill_tokens_per_s for run in runs)
    resident = resident_bytes()  # before the memory's speed is measured, which takes some
    return {
        "edgerun": __version__,
        "model": str(llm.model.path),
        "threads": llm.model.threads,
        "backends": list(llm.model.backends),
        "prompt_tokens": runs[0].prompt_tokens,
        "new_tokens": runs[0].completion_tokens,
        "runs": len(runs),
        "load_s": round(load_s, 3),
        "first_token_s": round(statistics.median(run.first_token_s for run in runs), 6),
        "prefill_tokens_per_s": round(prefill, 3),
        "decode_tokens_per_s": round(decode, 3),
        **streaming(llm, decode),
        "resident_bytes": resident,
    }


def _one_run(llm: LLM, prompt_tokens: int, new_tokens: int, index: int) -> Stats:
    import numpy as np

    # Other ids every time, so that no run finds the last one's prompt in the cache.
    ids = np.random.default_rng(index).integers(0, llm.model.vocab_size, prompt_tokens)
    ids[0] = index % llm.model.vocab_size
    asked: dict[str, Any] = {"temperature": 0.0, "max_tokens": new_tokens, "ignore_eos": True}
    return llm.generate([int(id_) for id_ in ids], **asked).stats


def _as_text(found: dict[str, Any]) -> str:
    from edgerun.cli.tables import size

    limit, share = found["memory_limit_gb_per_s"], found["share_of_memory_limit"]
    return "\n".join(
        [
            f"prefill  {found['prefill_tokens_per_s']:.1f} tokens/s "
            f"({found['prompt_tokens']} tokens)",
            f"decode   {found['decode_tokens_per_s']:.1f} tokens/s ({found['new_tokens']} tokens)",
            f"weights  {size(found['weight_bytes'])} a token, {found['gb_per_s']:.2f} GB/s, "
            f"{share:.0%} of the measured limit of {limit:.1f} GB/s",
            f"memory   {size(found['resident_bytes'])} resident",
            f"threads  {found['threads']}, back-ends {', '.join(found['backends'])}",
        ]
    )
