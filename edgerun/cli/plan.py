"""``edgerun plan``: which part of a model runs where, and why."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgerun.cli import options
from edgerun.cli.screen.tables import print_pairs, print_rows, size
from edgerun.cli.screen.visible import folded

if TYPE_CHECKING:
    from edgerun.backends.base import Backend
    from edgerun.backends.figures import Report
    from edgerun.backends.registry import Candidates
    from edgerun.llm.experts import PromptCalls
    from edgerun.llm.options import LoadOptions
    from edgerun.model.bundle import Bundle
    from edgerun.plan.expert_forecast import ExpertForecast
    from edgerun.plan.expert_memory import ExpertBudget
    from edgerun.plan.plans import Plan
    from edgerun.plan.requests.breakeven import Split

EXAMPLES = options.examples(
    "edgerun plan", "edgerun plan ./my-model --explain", "edgerun plan ./my-model --plot plan.svg"
)
OF_RUNNING = ("require", "context", "expert_trace")  # which plans do not depend on

Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE.svg",
        help="Draw what prompts take by their length in each place, and where it pays.",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        metavar="FILE",
        help="What `edgerun trace` wrote: count how often its experts would have been in memory, "
        "where they do not all fit.",
    ),
]


@options.with_loading_of(*(name for name in options.LOADING if name not in OF_RUNNING))
def plan(
    model: options.Model = None,
    named: options.NamedModel = None,
    *,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what was turned down too, and why.")
    ] = False,
    plot: Plot = None,
    loading: dict[str, Any],
    trace: Trace = None,
    as_json: options.Json = False,
) -> None:
    from edgerun.backends.registry import absent_backends
    from edgerun.kernels.host.memory import available_memory
    from edgerun.llm.compiling import candidates_for
    from edgerun.llm.loading import attending, call_rows, experts_of, open_model
    from edgerun.llm.options import LoadOptions
    from edgerun.plan.routes import plan_for
    from edgerun.plan.streaming import held_bytes, prompt_bytes
    from edgerun.plan.tasks import Budget

    if plot is not None:
        from edgerun.cli.screen.plan_plot import check_plot, draw

        check_plot(plot)
    chosen = LoadOptions(**loading)
    bundle = attending(open_model(options.model_of(model, named)), chosen)
    experts = experts_of(bundle, chosen)
    candidates = candidates_for(bundle, chosen, experts)
    rows = call_rows(chosen, experts)
    budget = Budget(call_rows=rows, memory_bytes=available_memory())
    planned = plan_for(bundle.graph, candidates, budget, weighs_all=True)
    if plot is not None:
        draw(planned, bundle.path.resolve().name, bundle.manifest.model.context_length, plot)
    held = held_bytes(planned, candidates.every(), experts.nbytes if experts else None)
    of_prompts = prompt_bytes(planned, candidates.every())
    expected = _forecast(bundle, experts, candidates.every(), trace, planned, rows)
    outlooks = _outlooks(planned, candidates)
    for candidate in candidates.every():
        candidate.close()
    placements = [asdict(row) for row in planned.explain() if explain or row.chosen]
    if as_json:
        print(json.dumps(_as_json(planned, placements, expected, outlooks), ensure_ascii=False))
        return
    _print(planned, placements, expected)
    if explain:
        _print_more(planned, placements, expected, absent_backends(candidates), outlooks)
        print_pairs("weights in memory", _sizes(held, _packing(bundle, chosen), of_prompts))


def _print(
    planned: Plan, placements: list[dict[str, Any]], expected: ExpertForecast | None
) -> None:
    """What runs where, and what to expect."""
    from edgerun.backends.base import FEW_ROWS, Phase

    print_rows([_line(row) for row in _together(placements)])
    few = Phase.FEW.value
    if any(row["phase"] == few for row in placements):
        meaning = "as of several replies at a time, of drafts, and of the ends of prompts"
        print(folded(f"{few}: calls of 2 to {FEW_ROWS} tokens, {meaning}", sys.stdout, ""))
    if verdict := planned.verdict():
        print(folded(verdict, sys.stdout, ""))
    if expected is not None:
        print(folded(expected.line(), sys.stdout, ""))


def _print_more(
    planned: Plan,
    placements: list[dict[str, Any]],
    expected: ExpertForecast | None,
    absent: Mapping[str, str],
    outlooks: Sequence[Report],
) -> None:
    """What that stands on."""
    if expected is not None:
        from edgerun.cli.screen.experts import layer_rows, term_pairs

        print_rows(list(layer_rows(expected)))
        print_pairs("experts that are read while the model runs", term_pairs(expected))
    for report in outlooks:
        print(report.title)
        print_rows(report.rows)
        for note in report.notes:
            print(folded(f"  {note}", sys.stdout, "  "))
    if absent:
        print_pairs("not in the plan", absent)
    _print_bases(planned, placements)


def _forecast(
    bundle: Bundle,
    experts: ExpertBudget | None,
    backends: Sequence[Backend],
    trace: Path | None,
    planned: Plan,
    rows: int,
) -> ExpertForecast | None:
    """What to expect where experts are read from a disk; None where they are not."""
    if experts is None:
        if trace is not None:
            from edgerun.errors import InputError

            raise InputError(
                "--trace counts experts that are in memory, and here all are, or there are none: "
                "leave it out, or give them less with --expert-memory"
            )
        return None
    from edgerun.llm.experts import forecast_for

    return forecast_for(bundle, experts, backends, _calls(planned, bundle, rows), trace)


def _calls(planned: Plan, bundle: Bundle, rows: int) -> PromptCalls:
    """How prompts go through a model of which so many rows are multiplied at a time at best."""
    from edgerun.llm.experts import PromptCalls
    from edgerun.plan.states import states_of
    from edgerun.plan.workload import affordable_rows
    from edgerun.state.capacity import largest_call, with_long_calls

    context = bundle.config.context_length
    most = largest_call(with_long_calls(states_of(bundle.graph, bundle.config, "fp16"), context))
    rows = min(rows, most, affordable_rows(bundle.graph))
    is_layered = planned.prompts is None and len(planned.backends()) == 1
    return PromptCalls(context, rows, most if is_layered else rows)


def _outlooks(planned: Plan, candidates: Candidates) -> list[Report]:
    """What back-ends expect of their parts.

    Raises:
        BackendError: one that was named has no room for its part, as loading would say.
    """
    from edgerun.backends.figures import Report
    from edgerun.errors import BackendError
    from edgerun.plan.tasks import typical_segments

    reports = []
    for backend in candidates.every():
        # Of layers that could be shared it tells why they are not.
        name = None if backend.holds_experts else backend.name
        own = typical_segments(planned.segments, name)
        try:
            report = backend.outlook(own) if own else None
        except BackendError as error:
            if candidates.names(backend):
                raise
            report = Report(f"no part of {backend.name}'s", [], [str(error)])
        reports += [report] if report else []
    return reports + _of_attention(planned, candidates.every())


def _of_attention(planned: Plan, backends: Sequence[Backend]) -> list[Report]:
    """How layers attend to prompts, if that is to be faster."""
    from edgerun.backends.figures import Report
    from edgerun.plan.streaming import prompt_attention

    layers = prompt_attention(planned, backends).values()
    if not layers:
        return []
    counts = Counter(f"exact, since {why}" if why else "in bfloat16" for why in layers)
    rows = [{"layers": count, "form": form} for form, count in counts.items()]
    return [Report("attention of prompts", rows)]


def _print_bases(planned: Plan, placements: list[dict[str, Any]]) -> None:
    """What estimates stand on, and the terms of what was weighed."""
    bases = {row["backend"]: row["basis"] for row in placements if row["basis"]}
    print_pairs("estimates stand on", bases)
    for split in planned.splits:
        print_pairs(f"prompts with {' and '.join(split.there.names)}", _terms(split))


def _packing(bundle: Bundle, chosen: LoadOptions) -> str:
    """How ternary weights will lie in memory; empty if there are none."""
    from edgerun.formats.base import PackedWeight
    from edgerun.formats.stack import ExpertStack
    from edgerun.llm.compiling import packing_of

    for each in bundle.graph.constants.values():
        matrix = each.matrices[0] if isinstance(each, ExpertStack) else each
        if isinstance(matrix, PackedWeight) and matrix.format == "ternary":
            return packing_of(bundle, chosen)
    return ""


def _sizes(held: Mapping[str, int], packing: str, of_prompts: int) -> dict[str, str]:
    """Weights that back-ends hold, by their names, and those that prompts have besides."""
    packed = {"cpu": f", ternary ones as {packing}"} if packing else {}
    sizes = {name: size(nbytes) + packed.get(name, "") for name, nbytes in held.items()}
    if of_prompts:
        sizes["of prompts alone"] = f"{size(of_prompts)}, int8 with a scale for 128"
    return sizes


def _as_json(
    planned: Plan,
    placements: list[dict[str, Any]],
    expected: ExpertForecast | None,
    outlooks: Sequence[Report],
) -> dict[str, Any]:
    """What ``--json`` prints; the names are a contract."""
    return {
        "placements": placements,
        "from_tokens": planned.prompts.from_rows + 1 if planned.prompts else None,
        "verdict": planned.verdict(),
        "splits": [split.terms() for split in planned.splits],
        "experts": None if expected is None else expected.terms(),
        "devices": [asdict(report) for report in outlooks],
    }


def _together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds up segments of a phase that hold the same ops on the same back-end."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["phase"], row["backend"], row["reason"], tuple(row["ops"].items()))
        kinds.setdefault(key, []).append(row)
    return [
        {
            **same[0],
            "times": len(same),
            "seconds": sum(row["seconds"] for row in same) if same[0]["chosen"] else None,
        }
        for same in kinds.values()
    ]


def _line(row: Mapping[str, Any]) -> dict[str, str]:
    """A placement as a person reads it."""
    ops = ", ".join(f"{count} {op}" for op, count in row["ops"].items())
    if row["times"] > 1:
        ops = f"{row['times']} times: {ops}"
    return {
        "phase": row["phase"],
        "back-end": row["backend"] if row["chosen"] else f"not {row['backend']}",
        "tokens": "" if row["rows"] is None else str(row["rows"]),
        "estimate": "" if row["seconds"] is None else f"{row['seconds'] * 1e3:.2f} ms",
        "what, or why not": ops if row["chosen"] else row["reason"],
    }


def _terms(split: Split) -> dict[str, str]:
    """What decides from how many tokens on prompts go elsewhere, term by term."""
    tokens, start = split.longest, split.from_tokens()
    here = " and ".join(split.here.names)
    calls = {
        f"a call of {rows} rows": f"{seconds * 1e3:.4g} ms"
        for rows, seconds in split.there.calls.items()
    }
    return {
        "first call after a pause": f"{split.launch_s * 1e3:.4g} ms more",
        **calls,
        "keys and values of a token": f"{split.handover_s * 1e6:.4g} us to hand over",
        f"the last token, with {here}": f"{split.decode_s * 1e3:.4g} ms",
        f"a prompt of {tokens} tokens": f"{split.seconds_there(tokens) * 1e3:.4g} ms",
        f"the same with {here} alone": f"{split.seconds_here(tokens) * 1e3:.4g} ms, "
        f"{tokens / split.seconds_here(tokens):.4g} tokens/s",
        "it pays": "never in a call" if start is None else f"from {start} tokens on",
        "figures": split.basis,
    }
