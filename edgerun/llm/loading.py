"""From a path to a model ready to run: the seam between the API and what lies below."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.backends.base import Backend, Progress, Shape
from edgerun.backends.registry import DEFAULT, backend_names, make_backend
from edgerun.engine.chooser.processor import processor_types
from edgerun.engine.drafting.registry import drafting_for
from edgerun.engine.engine import DEFAULT_CHUNK_ROWS, DEFAULT_PROMPT_ROWS, Engine
from edgerun.errors import BundleError, InputError
from edgerun.formats.stack import ExpertStack
from edgerun.kernels.host.huge_pages import zeroed_memory
from edgerun.kernels.host.memory import available_memory
from edgerun.llm.checkpoints import HUB, bundle_of, is_checkpoint, with_advice
from edgerun.llm.compiling import EXACT, NEVER, compile_bundle, resident_bytes
from edgerun.llm.options import MAX_CONTEXT, LoadOptions, log_progress
from edgerun.model.bundle import Bundle, open_bundle
from edgerun.model.chat.switches import set_switches
from edgerun.model.chat.template import ChatTemplate, template_source
from edgerun.model.config import eos_ids, read_json_object, sampling_defaults
from edgerun.model.text.sandboxed_library import SandboxedLibrary
from edgerun.model.text.tokenizer import Tokenizer
from edgerun.plan.latent_rows import CODECS, attend_to_latent_rows
from edgerun.plan.programs import Programs
from edgerun.plan.states import states_of
from edgerun.plan.workload import Workload, affordable_rows, workload
from edgerun.state import State
from edgerun.state.capacity import (
    affordable_context,
    check_context,
    largest_call,
    sequence_bytes,
    with_long_calls,
)
from edgerun.state.memory import Memory

if TYPE_CHECKING:
    from edgerun.engine.drafting.drafting import Drafting
    from edgerun.plan.expert_memory import ExpertBudget

logger = logging.getLogger(__name__)

MIN_CONTEXT = 512
STREAMED_CHUNK_ROWS = 1024
CACHE_SHARE = 0.5  # of the free memory, for one full context
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


@dataclass(slots=True)
class Model:
    """All that is needed to generate text.

    Attributes:
        path: the bundle.
        tokenizer: text to ids and back.
        template: chat template.
        programs: what runs batches.
        states: what the model's layers remember.
        context: tokens a sequence may have.
        vocab_size: width of the logits.
        eos_ids: ids that end a reply.
        sampling_defaults: what the model recommends.
        chunk_rows: most tokens of one call.
        weight_bytes: bytes of weights that a decode step reads.
        held_bytes: bytes of weights that back-ends have in memory.
        threads: worker threads.
        backends: those in use.
        everyone: those, and back-ends that stand in for them.
        workload: how much there is to multiply.
        owned: closes the back-ends; to be done after the programs are closed.
        bundle: from which it was made.
        options: with which.
        experts: memory that they share, where not all of them have room.
        drafting: what guesses how replies go on, if anything does.
    """

    path: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    programs: Programs
    states: tuple[State, ...]
    context: int
    vocab_size: int
    eos_ids: tuple[int, ...] = ()
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    chunk_rows: int = DEFAULT_CHUNK_ROWS
    weight_bytes: int = 0
    held_bytes: int = 0
    threads: int = 1
    backends: tuple[Backend, ...] = ()
    everyone: tuple[Backend, ...] = ()
    workload: Workload = field(default_factory=Workload)
    owned: ExitStack = field(default_factory=ExitStack)
    bundle: Bundle | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    experts: ExpertBudget | None = None
    drafting: Drafting | None = None

    @property
    def digest(self) -> str:
        """Identifies the bundle's content; see ``Bundle.digest``."""
        return self.bundle.digest if self.bundle else ""


def resolve(path: str | Path | None, progress: Progress = log_progress) -> Path:
    """Returns the folder of a bundle; None is the model that comes with edgerun.

    Of a checkpoint it is a bundle in the cache folder, which is made if it is not there.

    Raises:
        BundleError: no model comes with this installation.
        InputError: a checkpoint is broken, or a model that is not supported.
    """
    if path is not None:
        if is_checkpoint(path) or str(path).startswith(HUB):  # what is no name is refused
            return bundle_of(Path(path), progress)
        return Path(path)
    folder = own_model()
    if folder is None:
        raise BundleError(
            "no default model comes with this installation: name a bundle, "
            "for example one made with `edgerun export`"
        )
    return folder


def own_model() -> Path | None:
    """The folder of the model that comes with edgerun, if one does."""
    package = Path(__file__).parents[1]
    candidates = (package / "_default_model", package.parent / "models" / "default" / "bundle")
    return next((candidate for candidate in candidates if candidate.is_dir()), None)


def is_own_model(path: Path) -> bool:
    """Whether a folder is the model that comes with edgerun."""
    own = own_model()
    return own is not None and path.resolve() == own.resolve()


def model_name(path: Path) -> str:
    """What a bundle is called: as its folder, whichever path leads there."""
    return os.path.basename(os.path.abspath(path)) or "edgerun"  # resolved, a link lost its name


def open_model(
    path: str | Path | None, *, verify: bool = False, progress: Progress = log_progress
) -> Bundle:
    """Opens the bundle of a model, to read in it; see ``resolve`` and ``open_bundle``."""
    folder = resolve(path, progress)
    with with_advice(folder):
        return open_bundle(folder, verify=verify)


def prepare(path: str | Path | None, options: LoadOptions) -> Model:
    """Opens a bundle, plans it and compiles it.

    Raises:
        BundleError: the bundle is missing, broken or altered.
        UnsupportedError: no back-end runs it.
        BackendError: a back-end failed to compile it.
    """
    if path is not None:
        SandboxedLibrary.prepare()
    folder = resolve(path, options.progress)
    with with_advice(folder):
        return prepare_bundle(open_bundle(folder, verify=options.verify), options)


def prepare_bundle(bundle: Bundle, options: LoadOptions) -> Model:
    """Plans and compiles a bundle; see ``prepare``."""
    bundle, config = attending(bundle, options), bundle.config
    texts = {name: _read_json(bundle, name) for name in (TOKENIZER_CONFIG, GENERATION_CONFIG)}
    tokenizer = read_tokenizer(bundle, texts[TOKENIZER_CONFIG])
    template = ChatTemplate(
        _template_source(bundle, texts[TOKENIZER_CONFIG]), tokenizer.special_token_variables()
    )
    set_switches(template, options.template_values, options.think)
    states = states_of(bundle.graph, config, options.kv_cache)
    weights = resident_bytes(bundle, options) if _is_the_processors(options) else 0
    context = _context(options.context, config.context_length, states, weights)
    long = with_long_calls(states, context)
    experts = experts_of(bundle, options, long, context)
    states = states if experts is None else long
    most_rows = min(affordable_rows(bundle.graph), largest_call(states))
    rows = min(call_rows(options, experts), context, most_rows)
    end_ids = dict.fromkeys((*config.eos_token_ids, *eos_ids(texts[GENERATION_CONFIG])))
    compiled = compile_bundle(bundle, options, states, rows, experts=experts)
    with ExitStack() as unused:
        unused.callback(compiled.owned.close)
        unused.callback(compiled.programs.close)
        if options.context is None:
            context = _left_context(context, config.context_length, states)
        drafting = drafting_for(options.draft, compiled.programs, states)
        unused.pop_all()
    return Model(
        path=bundle.path,
        tokenizer=tokenizer,
        template=template,
        programs=compiled.programs,
        states=states,
        context=context,
        vocab_size=config.vocab_size,
        eos_ids=tuple(dict.fromkeys((*end_ids, *tokenizer.eos_ids))),
        sampling_defaults=_recommended(bundle, texts[GENERATION_CONFIG]),
        chunk_rows=rows,
        weight_bytes=compiled.weight_bytes,
        held_bytes=compiled.held_bytes,
        threads=options.worker_threads,
        backends=compiled.backends,
        everyone=compiled.everyone,
        workload=workload(bundle.graph),
        owned=compiled.owned,
        bundle=bundle,
        options=options,
        experts=experts,
        drafting=drafting,
    )


def _recommended(bundle: Bundle, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the model recommends of sampling."""
    checks = {
        entry.name: entry.kind.check
        for processor in processor_types()
        if not processor.callers_only
        for entry in processor.options()
    }
    return sampling_defaults(config, checks, bundle.path / GENERATION_CONFIG)


def attending(bundle: Bundle, options: LoadOptions) -> Bundle:
    """The bundle, with attention to latent rows unless something is asked for that has no such.

    Those are other back-ends than the processor and devices that hold experts, storage with a
    scale for each row, and attention in bfloat16.

    Raises:
        BundleError: weights that it would multiply by are not finite.
    """
    is_plain = options.kv_cache in CODECS and options.attention == EXACT
    if options.latent == NEVER or not is_plain or not _is_the_processors(options):
        return bundle
    graph = attend_to_latent_rows(bundle.graph)
    if graph is bundle.graph:
        return bundle
    cpu, nodes = make_backend(DEFAULT[0]), [n for n in graph.nodes if n.op == "latent_attention"]
    is_supported = all(cpu.supports(graph, node, Shape.of(1)) for node in nodes)
    return replace(bundle, graph=graph) if is_supported else bundle


def _is_the_processors(options: LoadOptions) -> bool:
    """Whether the processor computes all but what a device does that holds experts."""
    if options.place is not None:
        return False
    name = options.named_backend or (options.device or "").partition(":")[0]
    if name in ("", *DEFAULT):
        return True
    return name in backend_names() and make_backend(name).holds_experts  # others are refused later


def experts_of(
    bundle: Bundle, options: LoadOptions, states: tuple[State, ...] = (), context: int = 1
) -> ExpertBudget | None:
    """The memory for experts where not all have room; see ``experts.expert_budget``."""
    stacks = (isinstance(each, ExpertStack) for each in bundle.graph.constants.values())
    if options.expert_memory is None and not any(stacks):
        return None
    from edgerun.llm.experts import expert_budget  # for few, and every start counts

    state_bytes = sequence_bytes(states, context) if states else 0
    return expert_budget(bundle, options, state_bytes, min(context, largest_call(states)))


def read_tokenizer(bundle: Bundle, config: Mapping[str, Any]) -> Tokenizer:
    """Reads a bundle's tokenizer, in this process only if the bundle comes with edgerun.

    Raises:
        BundleError: it is broken, or has more tokens than the model.
    """
    is_own = is_own_model(bundle.path)
    tokenizer = Tokenizer.from_json(bundle.read_text("tokenizer.json"), config, is_own=is_own)
    if tokenizer.vocab_size > bundle.config.vocab_size:
        raise BundleError(
            f"the tokenizer of {bundle.path} has {tokenizer.vocab_size} tokens and the model "
            f"{bundle.config.vocab_size}: they do not belong together"
        )
    return tokenizer


def _read_json(bundle: Bundle, name: str) -> dict[str, Any]:
    return read_json_object(name, bundle.read_text(name) if bundle.has(name) else None)


def _template_source(bundle: Bundle, tokenizer_config: Mapping[str, Any]) -> str | None:
    file = bundle.read_text(CHAT_TEMPLATE) if bundle.has(CHAT_TEMPLATE) else None
    return template_source(tokenizer_config, file)


def call_rows(options: LoadOptions, experts: ExpertBudget | None) -> int:
    """Most tokens of a call; more than else where each reads experts, unless chosen."""
    is_chosen = experts is None or options.chunk_rows != DEFAULT_CHUNK_ROWS
    return options.chunk_rows if is_chosen else STREAMED_CHUNK_ROWS


def prompt_rows(options: LoadOptions, experts: ExpertBudget | None) -> int:
    """Most prompt tokens of a call that replies wait for: any number where it reads experts.

    Unless another is chosen. A few dozen of them ask for nearly as many experts as all of them do.
    """
    is_chosen = experts is None or options.prompt_rows != DEFAULT_PROMPT_ROWS
    return options.prompt_rows if is_chosen else MAX_CONTEXT


def host_memory() -> Memory:
    """What this machine has for states."""
    return Memory(available_memory, on_huge_pages=zeroed_memory)


def _context(requested: int | None, trained: int, states: tuple[State, ...], weights: int) -> int:
    """Tokens a sequence may have beside weights that are not in memory yet.

    Raises:
        InputError: more than the model was trained for, or than memory has room for.
    """
    if requested is not None and requested > trained:
        raise InputError(
            f"context is {requested}; this model was made for at most {trained} tokens"
        )
    memory = host_memory()
    context = requested or _affordable(states, trained, memory.look() - weights)
    check_context(states, context, memory, weights)
    return context


def _affordable(states: tuple[State, ...], most: int, nbytes: int) -> int:
    """A context that nobody asked for: it has a share of memory, a short one as much as it needs.

    At least a token, though there may be no room for it.
    """
    share = affordable_context(states, most, int(nbytes * CACHE_SHARE))
    return max(1, share, affordable_context(states, min(most, MIN_CONTEXT), nbytes))


def _left_context(context: int, trained: int, states: tuple[State, ...]) -> int:
    """A context that nobody asked for, or less, if what was loaded took more than was foreseen."""
    left = host_memory().look()
    if sequence_bytes(states, context) > left:
        context = _affordable(states, context, left)
    if context < trained:
        logger.warning(
            "the context is limited to %d of %d tokens by the free memory; choose one with "
            "the context option",
            context,
            trained,
        )
    return context


def recompile(model: Model, engine: Engine, options: LoadOptions) -> None:
    """Has a model computed elsewhere; if that cannot be, all is as before.

    Args:
        model: that has a bundle.
        engine: of it; nobody else changes either meanwhile.
        options: as it was loaded, but for the places.

    Raises:
        InputError, UnsupportedError, BackendError: see ``LLM.place``.
    """
    assert model.bundle is not None
    engine.check_ready()  # before seconds are spent on compiling
    compiled = compile_bundle(
        model.bundle, options, model.states, model.chunk_rows, model.everyone, model.experts
    )
    try:
        engine.replace(compiled.programs)
    except BaseException:
        compiled.discard(model.everyone)
        raise
    for backend in set(model.everyone).difference(compiled.everyone):
        backend.close()
    model.owned.pop_all()  # what it would close is closed, or in use
    model.options = options
    for part in fields(compiled):
        setattr(model, part.name, getattr(compiled, part.name))
