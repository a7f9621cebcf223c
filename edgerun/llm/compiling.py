"""From a bundle and options to programs: which back-ends there are, what runs where."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun import env
from edgerun.backends.base import Backend, CompileOptions, ExpertMemory, buckets
from edgerun.backends.registry import Candidates, backend_names, find_candidates, offered_names
from edgerun.errors import InputError
from edgerun.formats.stack import ExpertStack
from edgerun.graph.ir import Constant, Node
from edgerun.kernels.host.memory import available_memory
from edgerun.model.bundle import Bundle
from edgerun.plan.plans import Plan
from edgerun.plan.programs import Programs, compile_plan
from edgerun.plan.routes import plan_for
from edgerun.plan.streaming import held_bytes, prompt_attention, prompt_bytes, streamed_bytes
from edgerun.plan.tasks import Budget
from edgerun.state import State
from edgerun.values import Notice, shown

if TYPE_CHECKING:
    from edgerun.llm.options import LoadOptions
    from edgerun.offload.sharing.filling import History
    from edgerun.plan.expert_memory import ExpertBudget
    from edgerun.plan.places import Places

EXACT, FAST = "exact", "fast"  # how prompts are multiplied
AUTO, ALWAYS = "auto", "always"  # when layers of experts are shared with a device
NEVER = "never"  # or when rows are cached of which heads are made, "auto" or never
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compiled:
    """What runs a model.

    Attributes:
        programs: by the batches that they take.
        backends: that run anything.
        everyone: those, and those that stand in for them.
        owned: closes all back-ends; to be done after the programs are closed.
        weight_bytes: of weights that a decode step reads.
        held_bytes: of weights that back-ends have in memory.
    """

    programs: Programs
    backends: tuple[Backend, ...]
    everyone: tuple[Backend, ...]
    owned: ExitStack
    weight_bytes: int
    held_bytes: int

    def discard(self, reused: Sequence[Backend]) -> None:
        """Closes all of it but back-ends that something else runs on."""
        self.programs.close()
        for backend in set(self.everyone).difference(reused):
            backend.close()


def compile_bundle(
    bundle: Bundle,
    options: LoadOptions,
    states: tuple[State, ...],
    rows: int,
    reused: Sequence[Backend] = (),
    experts: ExpertBudget | None = None,
) -> Compiled:
    """Plans a bundle and compiles it.

    Weights that were never hashed are hashed meanwhile, so that nothing is generated with others.

    Args:
        bundle: opened.
        options: to load it with.
        states: what the model's layers remember.
        rows: of the largest call.
        reused: back-ends that ran it before; those that hold weights in the processor's memory go
            on doing so.
        experts: memory that they share, where not all of them have room.

    Raises:
        InputError: there is no back-end or device of a name.
        UnsupportedError: no back-end runs it.
        BackendError: a back-end failed to compile it.
    """
    candidates = candidates_for(bundle, options, experts).reusing(reused)
    with ExitStack() as owned, bundle.files.verification() as verification:
        backends = candidates.every()
        for backend in backends:
            if backend not in reused:
                owned.callback(backend.close)
        budget = Budget(call_rows=rows, memory_bytes=available_memory())
        plan = plan_for(bundle.graph, candidates, budget)
        used = tuple(backend for backend in backends if backend.name in plan.backends())
        _warn_of_idle(plan, candidates, used)
        for backend in set(backends).difference(used, reused):
            backend.close()
        _announce(plan, used, options)
        compile_options = CompileOptions(
            states,
            options.progress,
            digest="" if bundle.is_foreign else bundle.digest,
            verified=lambda: verification.finish(options.progress),
        )
        programs = compile_plan(plan, backends, buckets(rows), compile_options, options.require)
        owned.callback(programs.close)
        for backend in used:
            backend.preload()
        verification.finish(options.progress)
        owned.pop_all()
    closing = ExitStack()
    for backend in backends:
        closing.callback(backend.close)
    return Compiled(programs, used, backends, closing, *_sizes(plan, backends, experts))


def _sizes(
    plan: Plan, backends: Sequence[Backend], experts: ExpertBudget | None
) -> tuple[int, int]:
    """Bytes of weights that a decode step reads, and that back-ends have in memory."""
    held = held_bytes(plan, backends, experts.nbytes if experts else None)
    return streamed_bytes(plan, backends), sum(held.values())


def _check_required(name: str | None) -> None:
    """Makes sure that there is a back-end of that name, here or not.

    Raises:
        InputError: there is none.
    """
    if name is not None and name.partition(":")[0] not in backend_names():
        raise InputError(
            f"require is {shown(name)}; expected a back-end, with its device where it has several: "
            f"there are {', '.join(offered_names())}"
        )


def _warn_of_idle(plan: Plan, candidates: Candidates, used: Sequence[Backend]) -> None:
    """Names the back-ends that were asked for, for prompts too, and have no part."""
    asked = [each.preferred for each in (candidates, candidates.prompts) if each is not None]
    for name in dict.fromkeys(asked):
        if name is not None and name not in plan.backends():
            logger.warning(
                "the back-end '%s' computes no part of this model, %s computes all of it: %s",
                name,
                " and ".join(backend.name for backend in used),
                _why_not(plan, name),
            )


def _why_not(plan: Plan, preferred: str) -> str:
    """Why the back-end that was named has no part, if that can be changed; or where it is said."""
    refusal = plan.refusal_of(preferred)
    if refusal is None or not refusal.remedy:
        return "`edgerun plan --explain` says why"
    return str(refusal)


def _announce(plan: Plan, backends: Sequence[Backend], options: LoadOptions) -> None:
    """Says what is to be faster about prompts, and what that costs."""
    if options.prefill == FAST:
        _announce_weights(plan, backends, options)
    if options.attention == FAST:
        _announce_attention(plan, backends, options)


def _announce_weights(plan: Plan, backends: Sequence[Backend], options: LoadOptions) -> None:
    """Says what prompts with weights of their own cost.

    Raises:
        InputError: none of the model's would be faster.
    """
    nbytes = prompt_bytes(plan, backends)
    if not nbytes:
        raise InputError(
            "prefill is 'fast', which makes nothing of this model faster: it concerns weights with "
            "a scale for fewer than 128 on processors with AVX-512 VNNI or AMX, not those with a "
            "scale a row (ternary, int8), nor other back-ends; leave it out"
        )
    notice = (
        f"prompts have weights of their own, int8 with a scale for 128: {nbytes / 1e6:.0f} MB "
        "more, and not quite the results of replies"
    )
    options.progress(Notice(notice))


def _announce_attention(plan: Plan, backends: Sequence[Backend], options: LoadOptions) -> None:
    """Says how prompts are attended to, and which layers are not, and why.

    Raises:
        InputError: none of the model's would be faster.
    """
    layers = prompt_attention(plan, backends)
    reasons = sorted({why for why in layers.values() if why})
    if all(layers.values()):
        why = "; ".join(reasons) or "the processor computes no attention of prompts"
        raise InputError(
            f"attention is 'fast', which makes nothing of this model faster: {why}; leave it out"
        )
    notice = "prompts attend in bfloat16, and have not quite the results of replies"
    options.progress(Notice(notice))
    if reasons:
        exact = f"{sum(map(bool, layers.values()))} of {len(layers)} layers"
        notice = f"{exact} attend exactly all the same: {'; '.join(reasons)}"
        options.progress(Notice(notice))


def candidates_for(
    bundle: Bundle, options: LoadOptions, experts: ExpertBudget | None = None
) -> Candidates:
    """The back-ends to plan with, as the options name them.

    Raises:
        InputError: there is no back-end or device of a name, or memory of a GPU was asked for and
            no GPU, or layers are to be shared always whose experts are read from the disk.
        UnsupportedError: one that is named does not run here.
    """
    _check_required(options.require)
    given = {
        "threads": options.worker_threads,
        "kv_cache": options.kv_cache,
        "pack": packing_of(bundle, options),
        "prefill": options.prefill,
        "attention": options.attention,
        "experts": expert_memory_of(experts),
        "gpu_memory": options.gpu_memory,
        "expert_history": history_of(bundle, options),
        "share_always": options.share == ALWAYS,
        "keeps_costs": True,
    }
    if options.place is not None:
        from edgerun.plan.places import Places, placed_candidates

        places = Places.read(options.place)
        _check_rows(bundle, places)
        candidates = placed_candidates(places, given)
    else:
        candidates = find_candidates(options.backend, options.device, given)
    _check_holders(options, candidates)
    if experts is not None and options.share == ALWAYS:
        raise InputError(
            f"share is '{ALWAYS}', and experts are read from the disk, while a device gets them "
            "from memory: allow more memory for experts, or leave share out"
        )
    return candidates


def _check_rows(bundle: Bundle, places: Places) -> None:
    """Refuses other places for a model that is loaded, and whose cache no other place can read."""
    from edgerun.plan.places import ELSEWHERE

    is_latent = any(node.op == "latent_attention" for node in bundle.graph.nodes)
    if is_latent and {places.prefill, places.decode} != {ELSEWHERE}:
        raise InputError(
            "the cache of this model has one latent row for each token, which only the processor "
            "attends to: load it with latent='never', and then its parts can be placed elsewhere"
        )


def _check_holders(options: LoadOptions, candidates: Candidates) -> None:
    """Refuses options for devices that hold experts where there is none."""
    backends = candidates.every()
    is_shared = any(each.holds_experts and candidates.names(each) for each in backends)
    asked = {"expert_trace": options.expert_trace}
    asked |= {"share": None if options.share == AUTO else options.share}
    for name, value in asked.items():
        if value is not None and not is_shared:
            raise InputError(
                f"{name} is {shown(str(value))}, and no device was named that holds experts: name "
                "one, as with --device cuda:0, or leave it out"
            )
    takes_memory = any(backend.takes_gpu_memory for backend in backends)
    if options.gpu_memory is not None and not takes_memory:
        raise InputError(
            f"gpu_memory is {options.gpu_memory} bytes, and no GPU was named that holds experts: "
            "name one, as with --device cuda:0, or leave it out"
        )


def history_of(bundle: Bundle, options: LoadOptions) -> History | None:
    """What the experts of a bundle were asked before, by the trace that was named, if one was.

    Raises:
        InputError: it cannot be read, or is another model's.
    """
    if options.expert_trace is None:
        return None
    from edgerun.backends.cpu.experts.weights import stacks_of
    from edgerun.offload.sharing.filling import History
    from edgerun.offload.trace_file import read_trace

    graph = bundle.graph
    nodes = [node for node in graph.nodes if node.op == "experts"]
    first = {node.name: stacks_of(graph, node)[0] for node in nodes}
    experts = {name: stack.shape[0] for name, stack in first.items() if stack.has_choice}
    return History.of(read_trace(Path(options.expert_trace), bundle.digest), experts)


def resident_bytes(bundle: Bundle, options: LoadOptions) -> int:
    """Bytes of weights that the processor will have in memory if it runs a whole bundle.

    Experts among which tokens choose do not count: they get what is left
    (``experts.expert_budget``).
    """
    from edgerun.backends.cpu import CpuBackend

    graph, cpu = bundle.graph, CpuBackend()
    cpu.configure({"pack": packing_of(bundle, options), "prefill": options.prefill})
    held = {
        name: cpu.weight_bytes(graph, node, name)
        for node in (() if graph.refusal else graph.nodes)
        for name in node.inputs
        if name in graph.constants and _is_resident(node, graph.constants[name])
    }
    return sum(held.values()) + sum(cpu.prompt_bytes(graph).values())


def _is_resident(node: Node, constant: Constant) -> bool:
    """Whether all of a constant is in memory: of large tables rows are read as they are needed."""
    from edgerun.backends.cpu.staged import can_stage

    if isinstance(constant, ExpertStack):
        return not constant.has_choice
    return node.op != "embedding" or not can_stage(constant)


def expert_memory_of(experts: ExpertBudget | None) -> ExpertMemory | None:
    """Memory for experts as back-ends take it; None if all of them are to be there."""
    return None if experts is None else experts.memory()


def packing_of(bundle: Bundle, options: LoadOptions) -> str:
    """How the bundle's ternary weights will lie in memory, one of ``env.PACKS``."""
    return options.pack or env.settings().pack or bundle.manifest.pack
