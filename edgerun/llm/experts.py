"""Decides how much memory the experts of a model get, and forecasts what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun.backends.base import Backend, Phase, Shape
from edgerun.backends.cpu import CpuBackend
from edgerun.backends.figures import ExpertReads
from edgerun.errors import InputError
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Graph
from edgerun.graph.slabs import slab
from edgerun.kernels.host.memory import available_memory
from edgerun.model.bundle import Bundle
from edgerun.offload.policies.registry import policies
from edgerun.offload.replay import check_layers, layer_hit_shares
from edgerun.offload.trace_file import read_trace
from edgerun.plan.calibration.disk import disk_profile
from edgerun.plan.expert_forecast import PROMPT_TOKENS, Compute, ExpertForecast, forecast
from edgerun.plan.expert_memory import (
    POLICY,
    ExpertBudget,
    MemoryAmount,
    budget_for,
    expert_layers,
)
from edgerun.plan.tasks import CACHED, task_of

if TYPE_CHECKING:
    from edgerun.llm.options import LoadOptions

FLOAT_BYTES = 4
LONG_PROMPT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PromptCalls:
    """How prompts go through a model whose experts are read.

    Attributes:
        context: most tokens of one.
        chunk_rows: that are multiplied at a time.
        call_rows: for which an expert is read once.
    """

    context: int
    chunk_rows: int
    call_rows: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of prompts to forecast: the usual one, and a longer one if there may be such."""
        longer = min(LONG_PROMPT_TOKENS, self.context)
        return (PROMPT_TOKENS, longer) if longer > PROMPT_TOKENS else (PROMPT_TOKENS,)


def expert_budget(
    bundle: Bundle, options: LoadOptions, state_bytes: int, tokens: int = 0
) -> ExpertBudget | None:
    """The memory for experts, where not all have room; None where they have, or there are none.

    What the disk can do is measured unless it is known.

    Args:
        bundle: opened.
        options: to load it with.
        state_bytes: of keys and values.
        tokens: that may go through the model layer by layer, with a float32 row each in between.

    Raises:
        InputError: memory for experts is asked for and there are none, or nobody would heed it, or
            it is too little or more than is free.
        BackendError: the file of weights cannot be read.
    """
    graph, asked = bundle.graph, options.expert_memory
    constants = graph.constants.values()
    stacks = [each for each in constants if isinstance(each, ExpertStack) and each.has_choice]
    backend = options.named_backend
    problem = ""
    if not stacks:
        has_experts = any(isinstance(each, ExpertStack) for each in constants)
        shared = "every token goes through all of this model's experts"
        problem = shared if has_experts else "this model has no experts"
    elif backend not in (None, CpuBackend.name):
        problem = f"the back-end '{backend}' has all weights in memory"
    if problem:
        if asked is not None:
            raise InputError(f"expert_memory is {asked}, and {problem}: leave it out")
        return None
    cpu = CpuBackend()
    cpu.configure({"prefill": options.prefill})
    weights = sum(each.nbytes for each in constants) - sum(each.nbytes for each in stacks)
    weights += sum(cpu.prompt_bytes(graph).values())
    budget = budget_for(
        expert_layers(graph, cpu.expert_bytes),
        None if asked is None else MemoryAmount.read(asked),
        free_bytes=available_memory(),
        other_bytes=weights + state_bytes + FLOAT_BYTES * tokens * stacks[0].matrices[0].shape[1],
    )
    if budget is None:
        return None
    piece = slab(stacks[0].matrices[:1])
    file = None if piece is None else piece.file
    return replace(budget, disk=disk_profile(bundle.path, file, options.progress))


def forecast_for(
    bundle: Bundle,
    budget: ExpertBudget,
    backends: Sequence[Backend],
    calls: PromptCalls,
    trace: Path | None = None,
    reads: ExpertReads | None = None,
) -> ExpertForecast:
    """What to expect of a model whose experts are read from a disk.

    Args:
        bundle: of the model.
        budget: of memory.
        backends: that run it.
        calls: how prompts go through it.
        trace: file of what its experts were asked before, by which hits are counted.
        reads: what was read so far.

    Raises:
        InputError: the trace cannot be read, or is another model's.
    """
    from edgerun.machine.profile import machine_bandwidth

    cpu = next(backend for backend in backends if isinstance(backend, CpuBackend))
    shares = None
    if trace is not None:
        experts = {layer.name: layer.experts for layer in budget.layers}
        asked = read_trace(trace, bundle.digest)
        check_layers(asked, experts)
        counted = layer_hit_shares(asked, budget.slots, policies()[POLICY]())
        shares = dict(zip(experts, counted, strict=True))
    prompt, *longer = (
        _prompt_compute(bundle.graph, cpu, tokens, calls.chunk_rows) for tokens in calls.lengths
    )
    return forecast(
        budget,
        decode=_compute(bundle.graph, cpu, Shape(Phase.DECODE, 1, CACHED)),
        prompt=prompt,
        hit_shares=shares,
        reads=reads,
        memory_bytes_s=machine_bandwidth(1),
        threads=cpu.threads,
        longer=longer,
        call_rows=calls.call_rows,
    )


def _prompt_compute(graph: Graph, cpu: Backend, tokens: int, chunk_rows: int) -> Compute:
    """Seconds that a prompt takes with everything in memory: chunks like that in its middle."""
    rows = min(chunk_rows, tokens)
    chunk = _compute(graph, cpu, Shape(Phase.PREFILL, rows, (tokens - rows) // 2))
    return Compute(tokens, chunk.experts_s * tokens / rows, chunk.others_s * tokens / rows)


def _compute(graph: Graph, cpu: Backend, shape: Shape) -> Compute:
    """Seconds that a call takes on the processor with everything in memory."""
    task = task_of(graph, shape)
    experts = others = after = 0.0
    for node in task.graph.nodes:
        seconds = task.cost(cpu, node)
        if any(isinstance(task.graph.constants.get(name), ExpertStack) for name in node.inputs):
            experts, after = experts + seconds, 0.0
        else:
            others, after = others + seconds, after + seconds
    return Compute(shape.rows, experts, others + cpu.call_seconds(), after)
