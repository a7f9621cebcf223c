"""``edgerun bench``: how fast a model runs on this machine, and how fast it could."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.visible import folded, visible

if TYPE_CHECKING:
    from edgerun.backends.figures import ExpertReads
    from edgerun.cli.benchmark.report import Run
    from edgerun.engine.stats import Stats
    from edgerun.llm.llm import LLM

PROMPT_TOKENS, NEW_TOKENS = 128, 64
# The likeliest token, whatever the model recommends: sampling is not what is measured.
PLAIN: dict[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "dry_multiplier": 0.0,
}
NewTokens = Annotated[
    int | None,
    typer.Option("-n", "--new-tokens", help=f"Tokens to generate. [default: {NEW_TOKENS}]", min=2),
]
Context = Annotated[
    int | None,
    typer.Option(
        "-c",
        "--context",
        metavar="N",
        help="Measure decoding where the context ends at this many tokens. "
        "[default: right after the prompt]",
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--rows",
        metavar="N,N,...",
        help="Measure calls of so many rows too: several sequences, or a draft to verify.",
    ),
]
Handover = Annotated[
    bool,
    typer.Option(
        "--handover",
        help="Measure keys and values on their way between pages and devices instead.",
    ),
]
EXAMPLES = options.examples(
    "edgerun bench",
    "edgerun bench ./my-model -p 512 -n 64",
    "edgerun bench ./my-model --rows 1,2,4,8,16",
    "edgerun bench ./my-model --handover --place prefill=openvino:CPU",
    "edgerun bench ./my-model -t 4 --json",
)


@options.with_loading
def bench(
    model: options.Model = None,
    named: options.NamedModel = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--prompt-tokens",
            help=f"Length of the prompt. [default: {PROMPT_TOKENS}, or what fits]",
            min=1,
        ),
    ] = None,
    new_tokens: NewTokens = None,
    repeat: Annotated[int, typer.Option("--repeat", help="Runs; the median counts.", min=1)] = 3,
    *,
    loading: dict[str, Any],
    context: Context = None,
    rows: Rows = None,
    handover: Handover = False,
    as_json: options.Json = False,
) -> None:
    from edgerun.cli.benchmark.report import summary
    from edgerun.cli.benchmark.rows import row_counts, row_figures
    from edgerun.cli.screen.progress import progress_line
    from edgerun.engine.drafting.registry import NONE

    if handover:
        _check_alone({"--context": context, "--rows": rows, "--new-tokens": new_tokens})
        with options.load(options.model_of(model, named), draft=NONE, **loading) as llm:
            _print_handover(llm, prompt_tokens, repeat, as_json)
        return
    new_tokens = new_tokens or NEW_TOKENS
    _check_room(context, new_tokens)
    counts = None if rows is None else row_counts(rows)
    began = time.perf_counter()
    model = options.model_of(model, named)
    with options.load(model, context=context, draft=NONE, **loading) as llm:
        load_s = time.perf_counter() - began
        _check_real(llm)
        prompt = prompt_tokens or max(1, min(PROMPT_TOKENS, llm.model.context - new_tokens))
        filled = None if context is None else context - new_tokens
        if filled is None:
            _check_fits(llm.model.context, prompt, new_tokens)
        if filled is None and llm.expert_reads() is not None:
            filled = prompt  # what is read of experts is counted call by call
        with progress_line() as show:
            runs, segments = measured_runs(llm, prompt, new_tokens, filled, repeat, show)
            show("measuring what this machine can do")
            figures = summary(llm, runs, load_s) | {"segments": segments}
            if counts is not None:
                ids = _ids(llm, prompt, repeat + 1)
                figures["rows"] = row_figures(llm, counts, ids, repeat, show)
    print(json.dumps(figures) if as_json else _text(figures))


def measured_runs(
    llm: LLM,
    prompt: int,
    new_tokens: int,
    filled: int | None,
    repeat: int,
    show: Callable[[str], None],
) -> tuple[list[Run], list[dict[str, Any]]]:
    """Some runs after one that warms up, and what segments took in them."""
    from edgerun.cli.benchmark.segments import median_figures, segment_figures

    show(f"warming up, {repeat} run{'' if repeat == 1 else 's'} to come")
    one_run(llm, prompt, new_tokens, filled, 0)
    runs, rounds = [], []
    for index in range(1, repeat + 1):
        show(f"run {index} of {repeat}")
        with llm.model.programs.meters.reading() as meters:
            runs.append(one_run(llm, prompt, new_tokens, filled, index))
        rounds.append(segment_figures(llm, meters))
    return runs, median_figures(rounds)


def one_run(llm: LLM, prompt: int, new_tokens: int, filled: int | None, index: int) -> Run:
    """Computes a prompt of its own and decodes, after it or after ``filled`` other tokens."""
    from edgerun.cli.benchmark.report import Run

    # Other ids every time, so that no run finds the last one's prompt in the cache.
    ids = _ids(llm, prompt, index)
    if filled is None:
        stats, native_s, _ = _timed(llm, ids, new_tokens)
        return Run(stats, stats, native_s)
    prefill, of_prompt, prompt_reads = _timed(llm, ids, 1)
    # Two calls: what is in the cache already is not computed again, so only the first one fills.
    long = _ids(llm, filled, -1)
    llm.generate(long, **_greedy(1))
    decode, of_decode, reads = _timed(llm, long, new_tokens)
    native_s = {**of_decode, "prefill": of_prompt.get("prefill", 0.0)}
    if prompt_reads is None or reads is None:
        return Run(prefill, decode, native_s)
    return Run(prefill, decode, native_s, {"prefill": prompt_reads, "decode": reads})


def _text(figures: dict[str, Any]) -> str:
    from edgerun.cli.benchmark.report import as_text
    from edgerun.cli.benchmark.rows import row_lines
    from edgerun.cli.benchmark.segments import segment_lines

    lines = [
        *as_text(figures | {"model": _name(figures["model"])}).splitlines(),
        "",
        *segment_lines(figures["segments"]),
    ]
    if "rows" in figures:
        lines += ["", *row_lines(figures["rows"])]
    return "\n".join(folded(visible(line), sys.stdout, " " * 8) for line in lines)


def _name(model: str) -> str:
    """What people call a model: its folder, but for the one that comes along, as in chats."""
    from edgerun.llm.loading import is_own_model

    return "edgerun's own small model" if is_own_model(Path(model)) else model


def _timed(
    llm: LLM, ids: list[int], new_tokens: int
) -> tuple[Stats, dict[str, float], ExpertReads | None]:
    """Timings of a generation, seconds inside native programs by phase, and experts."""
    programs, reads = llm.model.programs, llm.expert_reads()
    before = {phase: counters.native_s for phase, counters in programs.launches.items()}
    stats = llm.generate(ids, **_greedy(new_tokens)).stats
    after = {phase: counters.native_s for phase, counters in programs.launches.items()}
    native_s = {phase: after[phase] - seconds for phase, seconds in before.items()}
    later = llm.expert_reads()
    return stats, native_s, None if later is None or reads is None else later.since(reads)


def _greedy(new_tokens: int) -> dict[str, Any]:
    return PLAIN | {"max_tokens": new_tokens, "ignore_eos": True}


def _ids(llm: LLM, count: int, seed: int) -> list[int]:
    import numpy as np

    ids = np.random.default_rng(seed + 1).integers(0, llm.model.vocab_size, count)
    ids[0] = (seed + 1) % llm.model.vocab_size
    return [int(id_) for id_ in ids]


def _check_real(llm: LLM) -> None:
    from edgerun.errors import InputError

    for backend in llm.model.backends:
        if backend.is_simulated:
            raise InputError(
                f"{backend.name} is simulated, so there is no speed to measure; `edgerun plan "
                "--device virtual:FILE --explain` says what it is reckoned to take"
            )


def _print_handover(llm: LLM, prompt_tokens: int | None, repeat: int, as_json: bool) -> None:
    from edgerun.cli.benchmark.handover import PROMPT_TOKENS, handover_figures, handover_lines
    from edgerun.cli.screen.progress import progress_line

    _check_real(llm)
    tokens = prompt_tokens or max(1, min(PROMPT_TOKENS, llm.model.context - 1))
    prompts = [_ids(llm, tokens, index) for index in range(repeat + 1)]
    with progress_line() as show:
        show("measuring keys and values on their way")
        figures = handover_figures(llm, prompts)
    if as_json:
        print(json.dumps(figures))
    else:
        print("\n".join(folded(visible(line), sys.stdout) for line in handover_lines(figures)))


def _check_alone(others: Mapping[str, object]) -> None:
    """What measures replies says nothing of what is handed over."""
    from edgerun.errors import InputError

    for flag, value in others.items():
        if value is not None:
            raise InputError(f"--handover measures no replies, so {flag} says nothing: leave it")


def _check_fits(context: int, prompt: int, new_tokens: int) -> None:
    from edgerun.errors import InputError

    if prompt + new_tokens > context:
        raise InputError(
            f"a prompt of {prompt} tokens and {new_tokens} new ones do not fit into the model's "
            f"context of {context} tokens; expected --prompt-tokens and --new-tokens that do"
        )


def _check_room(context: int | None, new_tokens: int) -> None:
    from edgerun.errors import InputError

    if context is not None and 1 <= context <= new_tokens:
        raise InputError(
            f"a context of {context} tokens has no room for a prompt and {new_tokens} new tokens; "
            f"expected --context {new_tokens + 1} or more, or a smaller --new-tokens"
        )
