"""What sharing layers of experts with a GPU would come to: simulated, no machine was measured.

    python -m tools.bench.offload [--models NAME ...] [--devices NAME ...] [--share 0.25 0.5 0.75]
        [--rows 1] [--recall R1 R2 R3] [--zipf 0.6] [--reuse 0.3] [--json]
    python -m tools.bench.offload --trace FILE --models NAME

Devices are the files in ``profiles/``; each figure in them says where it is from, and none of these
was measured. One that was is in ``profiles/measured/``, for ``--devices FILE``. Models have their
true shapes, int4 weights, and made-up traces (``tools/bench/synthetic_trace.py``), or a real one of
``edgerun trace``. A figure is the time of a step of so many tokens, in ms, over all layers: the
experts, event by event, and the attention between them on the device. ``bound`` is what no division
of the same experts with the same cache could fall below. Rules and their sources: ``rules.py``.
With ``--recall`` experts of the next layers are uploaded beforehand where the link idles, guesses
finding that share of them.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from edgerun.errors import EdgerunError, InputError
from edgerun.offload.trace_file import Trace, read_trace
from tools.bench.offload.profile import MODELS, Profile, Speeds, profiles
from tools.bench.offload.rules import RULES
from tools.bench.offload.simulate import Outcome, simulate
from tools.bench.synthetic_trace import Synthetic

OURS = "edgerun"
TITLE = "simulated: no machine was measured, and the profiles say what is assumed"


@dataclass(frozen=True)
class Row:
    """A model on a machine.

    Attributes:
        model: its name.
        device: the name of the profile.
        share: of each layer's experts that the device has room for.
        outcomes: by rule; figures of all steps together.
        step_ms: simulated time of a step, by rule.
        bound_ms: no division of ours could be faster.
    """

    model: str
    device: str
    share: float
    outcomes: dict[str, Outcome]
    step_ms: dict[str, float]
    bound_ms: float


def main(arguments: list[str] | None = None) -> int:
    """Simulates what the command line names and prints a table, or JSON."""
    options = parser().parse_args(arguments)
    try:
        rows = list(simulated(options))
    except EdgerunError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        text = {"title": TITLE, "rows": [asdict(row) for row in rows]}
        sys.stdout.write(json.dumps(text, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in table(rows))
    return 0


def parser() -> argparse.ArgumentParser:
    """Of the command line."""
    command_line = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_line.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    command_line.add_argument("--devices", nargs="+", metavar="NAME or FILE")
    command_line.add_argument("--share", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    command_line.add_argument("--rows", type=int, default=1)
    command_line.add_argument("--steps", type=int, default=64)
    command_line.add_argument("--layers", type=int, default=4, help="of made-up traces")
    command_line.add_argument("--zipf", type=float, default=0.6)
    command_line.add_argument("--reuse", type=float, default=0.3)
    command_line.add_argument("--recall", type=float, nargs="+", default=[])
    command_line.add_argument("--warm", type=int, default=128)
    command_line.add_argument("--seed", type=int, default=0)
    command_line.add_argument("--trace", type=Path)
    command_line.add_argument("--json", action="store_true")
    return command_line


def simulated(options: argparse.Namespace) -> Iterator[Row]:
    """All rows of the table."""
    devices = chosen(options.devices)
    for name in options.models:
        trace = trace_of(name, options)
        scale = 1e3 * MODELS[name].layers / len(trace.layers)
        steps = (trace.tokens - options.warm) // options.rows
        for device, profile in devices.items():
            speeds = Speeds(profile, MODELS[name])
            for share in options.share:
                outcomes = {
                    rule: simulate(
                        speeds,
                        trace,
                        rule,
                        share,
                        rows=options.rows,
                        warm=options.warm,
                        recall=options.recall,
                        seed=options.seed,
                    )
                    for rule in RULES
                }
                each = {rule: scale * outcome.seconds / steps for rule, outcome in outcomes.items()}
                bound = scale * outcomes[OURS].bound_s / steps
                yield Row(name, device, share, outcomes, each, bound)


def chosen(names: list[str] | None) -> dict[str, Profile]:
    """Profiles by name: those that are committed, or files."""
    committed = profiles()
    if names is None:
        return committed
    return {
        Path(name).stem: committed[name] if name in committed else Profile.read(Path(name))
        for name in names
    }


def trace_of(name: str, options: argparse.Namespace) -> Trace:
    """The trace of a model, read or made up.

    Raises:
        InputError: what was read is no trace of a model of this shape.
    """
    model = MODELS[name]
    if options.trace is not None:
        trace = read_trace(options.trace)
        if (trace.experts, trace.top_k) != (model.experts, model.top_k):
            raise InputError(
                f"{options.trace} has {trace.top_k} of {trace.experts} experts a token and {name} "
                f"has {model.top_k} of {model.experts}: name the model that it is of"
            )
        return trace
    return Synthetic(
        tokens=options.warm + options.rows * options.steps,
        layers=min(options.layers, model.layers),
        experts=model.experts,
        top_k=model.top_k,
        zipf=options.zipf,
        reuse=options.reuse,
        seed=options.seed,
    ).trace()


def table(rows: list[Row]) -> Iterator[str]:
    """The lines of a table in Markdown, and ratios to ours."""
    rules = list(rows[0].step_ms)
    yield f"ms a step, {TITLE}"
    yield ""
    yield f"| model | device | room | {' | '.join(rules)} | bound |"
    yield "|---" * (4 + len(rules)) + "|"
    for row in rows:
        figures = " | ".join(f"{row.step_ms[rule]:.2f}" for rule in rules)
        name = f"| {row.model} | {row.device} | {row.share:.0%}"
        yield f"{name} | {figures} | {row.bound_ms:.2f} |"
    yield ""
    means = ", ".join(f"{rule} {mean(rows, rule):.2f}" for rule in rules if rule != OURS)
    yield f"time over ours, geometric mean of {len(rows)}: {means}"
    above = math.prod(row.step_ms[OURS] / row.bound_ms for row in rows) ** (1 / len(rows))
    yield f"ours over its bound: {above:.3f}"
    if any(outcome.recall for row in rows for outcome in row.outcomes.values()):
        recalls = [row.outcomes[OURS].recall for row in rows]
        yield f"of what was guessed for ours, wanted in the end: {min(recalls):.2f} or more"


def mean(rows: list[Row], rule: str) -> float:
    """Geometric mean of a rule's times over ours."""
    logarithms = [math.log(row.step_ms[rule] / row.step_ms[OURS]) for row in rows]
    return math.exp(sum(logarithms) / len(rows))


if __name__ == "__main__":
    sys.exit(main())
